// A member of a group that prints what it is assigned (A), reads (R) and has committed (C): partition and offset.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	guard sync.Mutex
	out   = bufio.NewWriter(os.Stdout)
)

func say(kind string, partition int32, offset int64) {
	guard.Lock()
	defer guard.Unlock()
	fmt.Fprintf(out, "%s %d %d\n", kind, partition, offset)
}

func assigned(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	for _, partitions := range topics {
		for _, partition := range partitions {
			say("A", partition, -1)
		}
	}
}

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumerGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[3]),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(assigned),
		kgo.MetadataMinAge(time.Second),
		kgo.MetadataMaxAge(2*time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		panic(err)
	}
	for {
		fetches := client.PollRecords(context.Background(), 2000)
		var records []*kgo.Record
		fetches.EachRecord(func(record *kgo.Record) {
			say("R", record.Partition, record.Offset)
			records = append(records, record)
		})
		if len(records) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			if client.CommitRecords(ctx, records...) == nil {
				for _, record := range records {
					say("C", record.Partition, record.Offset+1)
				}
			}
			cancel()
		}
		guard.Lock()
		out.Flush()
		guard.Unlock()
	}
}
