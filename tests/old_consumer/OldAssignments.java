import java.io.BufferedReader;
import java.io.InputStreamReader;
import kafka.common.TopicAndPartition;
import kafka.consumer.AssignmentContext;
import kafka.consumer.ConsumerThreadId;
import kafka.consumer.PartitionAssignor;
import kafka.consumer.PartitionAssignor$;
import kafka.utils.Pool;
import kafka.utils.ZkUtils;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.TraversableOnce;
import scala.collection.mutable.Map;

/**
 * Asks the old consumer's own classes what a member of a group owns, as it does in its rebalance: registrations and topics come from
 * ZooKeeper. Each line of input, "group consumer strategy", is answered by "topic partition thread" lines and a line "."; a member
 * that cannot compute it by a line "! why" before the dot.
 */
public final class OldAssignments {
    public static void main(String[] arguments) throws Exception {
        ZkUtils zookeeper = ZkUtils.apply(arguments[0], 20000, 20000, false);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StringBuilder answers = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            try {
                answer(zookeeper, words[0], words[1], words[2], answers);
            } catch (Throwable problem) {
                answers.append("! ").append(problem.getClass().getSimpleName()).append('\n');
            }
            answers.append(".\n");
        }
        System.out.write(answers.toString().getBytes("UTF-8"));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void answer(ZkUtils zookeeper, String group, String consumer, String strategy, StringBuilder answers) {
        PartitionAssignor assignor = PartitionAssignor$.MODULE$.createInstance(strategy);
        Pool all = (Pool) (Object) assignor.assign(new AssignmentContext(group, consumer, true, zookeeper));
        Map<TopicAndPartition, ConsumerThreadId> own = (Map<TopicAndPartition, ConsumerThreadId>) all.get(consumer);
        StringBuilder found = new StringBuilder();
        Iterator<?> each = own == null ? scala.collection.Iterator$.MODULE$.empty() : ((TraversableOnce<?>) own).toIterator();
        while (each.hasNext()) {
            Tuple2<TopicAndPartition, ConsumerThreadId> row = (Tuple2<TopicAndPartition, ConsumerThreadId>) each.next();
            found.append(row._1().topic()).append(' ').append(row._1().partition()).append(' ').append(row._2()).append('\n');
        }
        answers.append(found);
    }
}
