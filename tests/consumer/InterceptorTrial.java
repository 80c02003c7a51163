import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import kmigrate.audit.ConsumerEvidence;
import kmigrate.audit.ProducerEvidence;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;

/** Calls the interceptors as Kafka's clients do, without a broker. Arguments: what to do, then `name=value` of the configuration. */
public final class InterceptorTrial {
    private static final RecordHeaders HEADERS = new RecordHeaders();

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> configs = new HashMap<>();
        for (int at = 1; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            configs.put(setting[0], setting[1].replace("@NUL@", "\0").replace("@HALF@", "\ud83d"));
        }
        long count = Long.parseLong(configs.getOrDefault("trial.count", "10").toString());
        if (arguments[0].equals("produce")) {
            produce(configs, count);
        } else {
            consume(configs, count);
        }
        System.out.println("unharmed");
    }

    /** Every third record is at an offset of another's transaction marker, so that no run is longer than two; the last one fails. */
    private static void produce(Map<String, Object> configs, long count) {
        ProducerEvidence interceptor = new ProducerEvidence();
        interceptor.configure(configs);
        for (long number = 0; number < count; number++) {
            ProducerRecord<Object, Object> record = new ProducerRecord<>("orders", 0, null, "key", "value", HEADERS);
            require(interceptor.onSend(record) == record && record.headers().toArray().length == 0);
            interceptor.onAcknowledgement(metadata(0, number + number / 2), null);
        }
        interceptor.onSend(new ProducerRecord<>("orders", "value"));
        interceptor.onAcknowledgement(metadata(-1, -1), new TimeoutException("late"));
        interceptor.onSend(null);
        interceptor.onAcknowledgement(null, new NullPointerException());
        interceptor.close();
        interceptor.close();
    }

    private static RecordMetadata metadata(int partition, long offset) {
        return new RecordMetadata(new TopicPartition("orders", partition), offset, 0, -1, -1, -1);
    }

    /** A poll of all records of two partitions, one of them with a gap and impossible times; a commit; a null that is a defect. */
    private static void consume(Map<String, Object> configs, long count) {
        ConsumerEvidence interceptor = new ConsumerEvidence();
        interceptor.configure(configs);
        Map<TopicPartition, List<ConsumerRecord<Object, Object>>> polled = new LinkedHashMap<>();
        polled.put(new TopicPartition("orders", 0), records(0, System.currentTimeMillis() - 250, LongStream.range(7, 7 + count)));
        polled.put(new TopicPartition("orders", 1), records(1, Long.MAX_VALUE, LongStream.of(0, 1, 5)));
        ConsumerRecords<Object, Object> records = new ConsumerRecords<>(polled);
        require(interceptor.onConsume(records) == records);
        Map<TopicPartition, OffsetAndMetadata> offsets = new LinkedHashMap<>();
        polled.forEach((key, of) -> offsets.put(key, new OffsetAndMetadata(of.get(of.size() - 1).offset() + 1)));
        interceptor.onCommit(offsets);
        interceptor.onCommit(Collections.emptyMap());
        if (configs.containsKey("trial.defect")) {
            require(interceptor.onConsume(null) == null);
        }
        interceptor.close();
    }

    private static List<ConsumerRecord<Object, Object>> records(int partition, long timestamp, LongStream offsets) {
        return offsets.mapToObj(offset -> record(partition, offset, timestamp)).collect(Collectors.toList());
    }

    private static ConsumerRecord<Object, Object> record(int partition, long offset, long timestamp) {
        return new ConsumerRecord<>("orders", partition, offset, timestamp, TimestampType.CREATE_TIME, 0, 0, null, null, HEADERS, Optional.empty());
    }

    private static void require(boolean holds) {
        if (!holds) {
            throw new AssertionError("the interceptor changed what it was given");
        }
    }
}
