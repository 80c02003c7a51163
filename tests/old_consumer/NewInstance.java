import java.util.Collection;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/**
 * The same application as OldInstance, built with KafkaConsumer: it processes each record, tells it as a JSON object a line, and
 * commits after each batch. A partition without an offset it reads from the end, as Java's default is: what was not copied would be skipped.
 * SIGTERM ends it. Arguments: bootstrap servers, group, client.id, topics with commas between.
 */
public final class NewInstance {
    public static void main(final String[] arguments) throws Exception {
        final KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<byte[], byte[]>(settings(arguments));
        final AtomicBoolean over = new AtomicBoolean();
        final Thread reading = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread() {
            @Override public void run() {
                over.set(true);
                consumer.wakeup();
                try {
                    reading.join(10000);
                } catch (InterruptedException ignored) {
                    Thread.currentThread().interrupt();
                }
            }
        });
        consumer.subscribe(java.util.Arrays.asList(arguments[3].split(",")), new ConsumerRebalanceListener() {
            @Override public void onPartitionsRevoked(Collection<TopicPartition> partitions) { }
            @Override public void onPartitionsAssigned(Collection<TopicPartition> partitions) { }
        });
        say("startup_complete", "");
        try {
            while (!over.get()) {
                process(consumer, consumer.poll(200));
            }
        } catch (WakeupException end) {
            // between two batches: everything that was told is committed
        }
        consumer.close();
        say("shutdown_complete", "");
    }

    private static void process(KafkaConsumer<byte[], byte[]> consumer, ConsumerRecords<byte[], byte[]> records) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            say("processed", String.format(",\"topic\":\"%s\",\"partition\":%d,\"offset\":%d", record.topic(), record.partition(), record.offset()));
        }
        if (!records.isEmpty()) {
            try {
                consumer.commitSync();
            } catch (WakeupException end) {
                consumer.commitSync(); // it is thrown once
                say("committed", "");
                throw end;
            }
            say("committed", "");
        }
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("client.id", arguments[2]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "latest");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("max.poll.records", "50");
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        return settings;
    }

    private static synchronized void say(String name, String more) {
        System.out.println("{\"timestamp\":" + System.currentTimeMillis() + ",\"name\":\"" + name + "\"" + more + "}");
        if (System.out.checkError()) {
            Runtime.getRuntime().halt(1); // nobody writes it down any more
        }
    }
}
