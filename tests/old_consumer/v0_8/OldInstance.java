import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.locks.ReentrantLock;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.ConsumerTimeoutException;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * The application with the old consumer of Kafka 0.8.2, which has no rebalance listener: one stream of one topic, each record told, a commit every
 * second and one at the end. In a rebalance the connector commits by itself; a record that is taken meanwhile comes to the next owner again.
 * Arguments: ZooKeeper, group, consumer.id, topic.
 */
public final class OldInstance {
    private static final ReentrantLock TURN = new ReentrantLock(true); // fair: the one who reads asks for it all the time
    private static boolean over; // read and set in TURN

    public static void main(final String[] arguments) throws Exception {
        final ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings(arguments)));
        say("startup_complete", "");
        final KafkaStream<byte[], byte[]> stream =
            connector.createMessageStreams(Collections.singletonMap(arguments[3], 1)).get(arguments[3]).get(0);
        final Thread reading = new Thread() {
            @Override public void run() {
                ConsumerIterator<byte[], byte[]> records = stream.iterator();
                while (turn(records)) {
                }
            }
        };
        reading.start();
        Thread committing = new Thread() {
            @Override public void run() {
                try {
                    while (true) {
                        Thread.sleep(1000);
                        commit(connector);
                    }
                } catch (InterruptedException end) {
                    return;
                }
            }
        };
        committing.setDaemon(true);
        committing.start();
        Runtime.getRuntime().addShutdownHook(new Thread() {
            @Override public void run() {
                TURN.lock();
                over = true;
                TURN.unlock();
                commit(connector);
                connector.shutdown();
                say("shutdown_complete", "");
            }
        });
        reading.join();
    }

    /** One record, if there is one; false: it is over. */
    private static boolean turn(ConsumerIterator<byte[], byte[]> records) {
        TURN.lock();
        try {
            if (!over && records.hasNext()) {
                MessageAndMetadata<byte[], byte[]> record = records.next();
                say("processed", String.format(",\"topic\":\"%s\",\"partition\":%d,\"offset\":%d", record.topic(), record.partition(), record.offset()));
            }
        } catch (ConsumerTimeoutException none) {
            return true;
        } finally {
            TURN.unlock();
        }
        return !over;
    }

    private static void commit(ConsumerConnector connector) {
        TURN.lock();
        try {
            connector.commitOffsets();
            say("committed", "");
        } finally {
            TURN.unlock();
        }
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("zookeeper.connect", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("consumer.id", arguments[2]);
        settings.put("auto.offset.reset", "smallest");
        settings.put("auto.commit.enable", "false");
        settings.put("consumer.timeout.ms", "10"); // of hasNext()
        settings.put("zookeeper.session.timeout.ms", "6000");
        settings.put("fetch.wait.max.ms", "100");
        return settings;
    }

    private static synchronized void say(String name, String more) {
        System.out.println("{\"timestamp\":" + System.currentTimeMillis() + ",\"name\":\"" + name + "\"" + more + "}");
        if (System.out.checkError()) {
            Runtime.getRuntime().halt(1); // nobody writes it down any more
        }
    }
}
