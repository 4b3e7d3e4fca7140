// A transactional producer that writes one record, and prints why it cannot.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.TransactionalID("tx"))
	if err == nil {
		err = client.BeginTransaction()
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = client.ProduceSync(ctx, &kgo.Record{Topic: os.Args[2], Value: []byte("x")}).FirstErr()
	}
	fmt.Println(err)
}
