// Messages of a topic through Flink's own debezium-json format, applied by key: the rows that a Flink job would have.
// Arguments: file of values (base64, one per line), file to write the rows to, in the order of their ids.
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.TreeMap;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.debezium.DebeziumJsonDeserializationSchema;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.util.Collector;

public class Flink {
    public static void main(String[] args) throws Exception {
        DataType row = DataTypes.ROW(
            DataTypes.FIELD("id", DataTypes.INT()), DataTypes.FIELD("tenant", DataTypes.STRING()),
            DataTypes.FIELD("name", DataTypes.STRING()), DataTypes.FIELD("price", DataTypes.DECIMAL(10, 2)),
            DataTypes.FIELD("at", DataTypes.TIMESTAMP_LTZ(6)), DataTypes.FIELD("ts", DataTypes.BIGINT()),
            DataTypes.FIELD("d", DataTypes.INT()), DataTypes.FIELD("ok", DataTypes.BOOLEAN()),
            DataTypes.FIELD("f", DataTypes.DOUBLE()), DataTypes.FIELD("tags", DataTypes.ARRAY(DataTypes.STRING())),
            DataTypes.FIELD("mood", DataTypes.STRING()));
        TypeInformation<RowData> type = InternalTypeInfo.of(row.getLogicalType());
        DebeziumJsonDeserializationSchema format = new DebeziumJsonDeserializationSchema(
            row, List.of(), type, Boolean.parseBoolean(args[2]), false, TimestampFormat.ISO_8601);
        format.open(null);
        TreeMap<String, String> table = new TreeMap<>();
        int[] count = {0};
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            byte[] value = line.equals("null") ? null : Base64.getDecoder().decode(line);
            format.deserialize(value, new Collector<RowData>() {
                public void collect(RowData found) {
                    count[0]++;
                    String key = found.getString(1) + " " + found.getInt(0);
                    switch (found.getRowKind()) {
                        case DELETE: case UPDATE_BEFORE: table.remove(key); break;
                        default: table.put(key, text(found));
                    }
                }
                public void close() {}
            });
        }
        try (PrintStream out = new PrintStream(args[1], "UTF-8")) { table.values().forEach(out::println); }
        System.out.println(count[0]);
    }

    static String text(RowData row) {
        List<String> tags = new ArrayList<>();
        if (!row.isNullAt(9)) for (int i = 0; i < row.getArray(9).size(); i++) {
            tags.add(row.getArray(9).isNullAt(i) ? "NULL" : row.getArray(9).getString(i).toString());
        }
        return String.join("|", "" + row.getInt(0), "" + row.getString(1), "" + row.getString(2),
            row.isNullAt(3) ? "null" : row.getDecimal(3, 10, 2).toBigDecimal().toPlainString(),
            row.isNullAt(4) ? "null" : "" + row.getTimestamp(4, 6).toInstant().toEpochMilli(),
            row.isNullAt(5) ? "null" : "" + row.getLong(5), row.isNullAt(6) ? "null" : "" + row.getInt(6),
            row.isNullAt(7) ? "null" : "" + row.getBoolean(7), row.isNullAt(8) ? "null" : "" + row.getDouble(8),
            row.isNullAt(9) ? "null" : String.join(",", tags), row.isNullAt(10) ? "null" : "" + row.getString(10));
    }
}
