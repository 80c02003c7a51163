import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.ReentrantLock;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.ConsumerThreadId;
import kafka.consumer.ConsumerTimeoutException;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.javaapi.consumer.ConsumerRebalanceListener;
import kafka.message.MessageAndMetadata;

/**
 * An application with Kafka's old consumer: one stream of one topic, offsets in ZooKeeper, each committed after it was told. It says
 * what it does as Kafka's VerifiableConsumer does, a JSON object a line; SIGTERM ends it. Arguments: ZooKeeper, group, consumer.id,
 * topic.
 *
 * The connector tells its listener nothing when it is shut down, and hands out what it had fetched after the last commit, too. So the
 * end is made here: no record any more, then a commit, then what it held is given up, then the connector leaves.
 *
 * Commits are made here as well. The connector's own, in a rebalance, comes before it tells its listener, and while it is made the
 * application may take one record more: that one comes again to whoever owns the partition next. Here a record is taken either before
 * the commit or not at all, so that nothing comes twice that somebody else did not bring about.
 */
public final class OldInstance {
    private static final ReentrantLock TURN = new ReentrantLock(true); // fair: the one who reads asks for it all the time
    private static boolean over; // read and set in TURN
    private static boolean holding; // the same: from the claim on, until it begins to let go

    public static void main(final String[] arguments) throws Exception {
        final String topic = arguments[3];
        final ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings(arguments)));
        final Ownership ownership = new Ownership(connector);
        connector.setConsumerRebalanceListener(ownership);
        say("startup_complete", "");
        Thread.sleep(Long.getLong("pause.ms", 0L));
        final KafkaStream<byte[], byte[]> stream =
            connector.createMessageStreams(Collections.singletonMap(topic, 1)).get(topic).get(0);
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
                while (pause(1000)) {
                    commit(connector);
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
                ownership.end();
                connector.shutdown();
                try {
                    reading.join(5000);
                } catch (InterruptedException ignored) {
                    Thread.currentThread().interrupt();
                }
                say("shutdown_complete", "");
            }
        });
        reading.join();
    }

    /** One record, if there is one, which counts as consumed from next() on; false: it is over, and none was taken. */
    private static boolean turn(ConsumerIterator<byte[], byte[]> records) {
        TURN.lock();
        try {
            if (!over && records.hasNext()) {
                MessageAndMetadata<byte[], byte[]> record = records.next();
                if (holding) { // else it was fetched for what is let go: it is not committed, and comes to the next owner
                    tell(record);
                }
            }
        } catch (ConsumerTimeoutException none) {
            return true;
        } finally {
            TURN.unlock();
        }
        return !over;
    }

    private static void tell(MessageAndMetadata<byte[], byte[]> record) {
        say("records_consumed", String.format(
            ",\"count\":1,\"partitions\":[{\"topic\":\"%s\",\"partition\":%d,\"count\":1,\"minOffset\":%d,\"maxOffset\":%d}]",
            record.topic(), record.partition(), record.offset(), record.offset()));
    }

    /** Not once it lets go: its offsets are somebody else's from then on. */
    private static void commit(ConsumerConnector connector) {
        TURN.lock();
        try {
            if (holding) {
                connector.commitOffsets();
                if (Boolean.getBoolean("tell.commits")) { // after it nothing that was told is uncommitted
                    say("committed", "");
                }
            }
        } finally {
            TURN.unlock();
        }
    }

    private static boolean pause(long ms) {
        try {
            Thread.sleep(ms);
            return true;
        } catch (InterruptedException end) {
            return false;
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

    /** What it owns, as the old consumer tells before it lets go and after it has claimed. */
    private static final class Ownership implements ConsumerRebalanceListener {
        private final ConsumerConnector connector;
        private List<String> held = new ArrayList<String>();
        private boolean ended;

        Ownership(ConsumerConnector connector) {
            this.connector = connector;
        }

        /** From here on nothing is owned, whatever the connector still shares out before it leaves. */
        synchronized void end() {
            beforeReleasingPartitions(null);
            ended = true;
        }

        @Override public synchronized void beforeReleasingPartitions(Map<String, java.util.Set<Integer>> ignored) {
            TURN.lock();
            try {
                commit(connector);
            } finally {
                holding = false;
                TURN.unlock();
            }
            tell("partitions_revoked", held);
            held = new ArrayList<String>();
        }

        @Override public synchronized void beforeStartingFetchers(String consumer, Map<String, Map<Integer, ConsumerThreadId>> everyone) {
            List<String> mine = new ArrayList<String>();
            for (Map.Entry<String, Map<Integer, ConsumerThreadId>> topic : everyone.entrySet()) {
                for (Map.Entry<Integer, ConsumerThreadId> owner : topic.getValue().entrySet()) {
                    if (owner.getValue().consumer().equals(consumer)) {
                        mine.add(String.format("{\"topic\":\"%s\",\"partition\":%d}", topic.getKey(), owner.getKey()));
                    }
                }
            }
            if (ended) {
                return;
            }
            held = mine;
            tell("partitions_assigned", mine);
            TURN.lock();
            holding = true;
            TURN.unlock();
        }

        private static void tell(String name, List<String> partitions) {
            if (!partitions.isEmpty()) {
                say(name, ",\"partitions\":[" + String.join(",", partitions) + "]");
            }
        }
    }
}
