// Debezium's engine beside us: every record as Kafka Connect's worker would write it, one JSON object per line.
// Arguments: ending of the topic that ends the run; for each engine its settings file and the file to write.
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.FileOutputStream;
import java.io.FileReader;
import java.io.PrintStream;
import java.util.Base64;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

public class Dump {
    static String text(byte[] bytes) {
        return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
    }

    static JsonConverter converter(boolean schemas, boolean key) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", Boolean.toString(schemas)), key);
        return made;
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch done = new CountDownLatch(args.length / 2);
        for (int i = 1; i < args.length; i += 2) start(args[i], args[0], args[i + 1], done);
        done.await();
        Runtime.getRuntime().halt(0);
    }

    static void start(String given, String end, String written, CountDownLatch done) throws Exception {
        Properties settings = new Properties();
        settings.load(new FileReader(given));
        PrintStream out = new PrintStream(new FileOutputStream(written), false, "UTF-8");
        JsonConverter key = converter(true, true), value = converter(true, false);
        JsonConverter bareKey = converter(false, true), bareValue = converter(false, false);
        SimpleHeaderConverter header = new SimpleHeaderConverter();
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine
            .create(ChangeEventFormat.of(Connect.class)).using(settings)
            .using((success, message, error) -> {
                if (!success) { System.err.println(message); if (error != null) error.printStackTrace(); System.exit(1); }
            })
            .notifying((records, committer) -> {
                for (RecordChangeEvent<SourceRecord> event : records) {
                    SourceRecord r = event.record();
                    StringBuilder headers = new StringBuilder();
                    for (Header one : r.headers()) {
                        headers.append(headers.length() > 0 ? "," : "").append("\"" + one.key() + "\":")
                            .append(text(header.fromConnectHeader(r.topic(), one.key(), one.schema(), one.value())));
                    }
                    out.println("{\"topic\":\"" + r.topic()
                        + "\",\"key\":" + text(key.fromConnectData(r.topic(), r.keySchema(), r.key()))
                        + ",\"value\":" + text(value.fromConnectData(r.topic(), r.valueSchema(), r.value()))
                        + ",\"bare_key\":" + text(bareKey.fromConnectData(r.topic(), r.keySchema(), r.key()))
                        + ",\"bare_value\":" + text(bareValue.fromConnectData(r.topic(), r.valueSchema(), r.value()))
                        + ",\"headers\":{" + headers + "}}");
                    if (r.topic().endsWith(end)) { out.flush(); done.countDown(); }
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
            }).build();
        Executors.newSingleThreadExecutor().execute(engine);
    }
}
