import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;

/**
 * Real old consumers, as many as wanted in one process. Each line of input, "group name strategy pattern topic:streams ...", is one
 * member; an empty line ends the list. The members of a group join one after another, the groups at once; "ready" is said when all
 * have joined. When the input ends they all leave.
 */
public final class OldMembers {
    private static final List<ConsumerConnector> all = new ArrayList<ConsumerConnector>();

    public static void main(final String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        Map<String, List<String[]>> groups = new HashMap<String, List<String[]>>();
        for (String line = input.readLine(); line != null && !line.isEmpty(); line = input.readLine()) {
            String[] words = line.split(" ");
            if (!groups.containsKey(words[0])) {
                groups.put(words[0], new ArrayList<String[]>());
            }
            groups.get(words[0]).add(words);
        }
        List<Thread> joining = new ArrayList<Thread>();
        for (final List<String[]> members : groups.values()) {
            Thread thread = new Thread() {
                @Override public void run() {
                    for (String[] member : members) {
                        register(arguments[0], member);
                    }
                }
            };
            thread.start();
            joining.add(thread);
        }
        for (Thread thread : joining) {
            thread.join();
        }
        System.out.println("ready");
        while (input.readLine() != null) { }
        for (ConsumerConnector each : all) {
            each.shutdown();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void register(String zookeeper, String[] words) {
        Properties settings = new Properties();
        settings.put("zookeeper.connect", zookeeper);
        settings.put("group.id", words[0]);
        settings.put("consumer.id", words[1]);
        settings.put("partition.assignment.strategy", words[2]);
        settings.put("rebalance.backoff.ms", "300");
        settings.put("rebalance.max.retries", "100");
        settings.put("zookeeper.session.timeout.ms", "20000");
        settings.put("zookeeper.connection.timeout.ms", "60000");
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        synchronized (all) {
            all.add(connector);
        }
        Map<String, Integer> topics = new HashMap<String, Integer>();
        for (int i = 4; i < words.length; i++) {
            int colon = words[i].lastIndexOf(':');
            topics.put(words[i].substring(0, colon), Integer.valueOf(words[i].substring(colon + 1)));
        }
        if (words[3].equals("static")) {
            connector.createMessageStreams(topics);
        } else {
            Map.Entry<String, Integer> only = topics.entrySet().iterator().next();
            boolean white = words[3].equals("white_list");
            connector.createMessageStreamsByFilter(white ? new Whitelist(only.getKey()) : new Blacklist(only.getKey()), only.getValue());
        }
    }
}
