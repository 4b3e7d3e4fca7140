// A member of a group that prints what it is assigned (A), reads (R) and has committed (C): partition and offset.
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;

public class Reader {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("metadata.max.age.ms", "2000");
        settings.put("default.api.timeout.ms", "20000");
        settings.put("request.timeout.ms", "15000");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(List.of(args[2]), new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                for (TopicPartition one : partitions) System.out.println("A " + one.partition() + " -1");
            }
        });
        while (true) {
            StringBuilder out = new StringBuilder();
            Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                out.append("R " + record.partition() + " " + record.offset() + "\n");
                done.put(new TopicPartition(record.topic(), record.partition()),
                         new OffsetAndMetadata(record.offset() + 1, record.leaderEpoch(), ""));
            }
            System.out.print(out);
            if (done.isEmpty()) continue;
            try {
                consumer.commitSync(done);
                done.forEach((at, to) -> System.out.println("C " + at.partition() + " " + to.offset()));
            } catch (KafkaException error) {
                // read on: the next commit covers it
            }
            System.out.flush();
        }
    }
}
