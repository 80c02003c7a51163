package kmigrate.audit;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.TopicPartition;

/** A producer's account: what the brokers acknowledged, and what it gave up. Numbers records per partition as they are answered. */
final class Acks extends Evidence {
    private static final long UNKNOWN_OFFSET = -1;

    private static final class Run {
        final TopicPartition key;
        final long first;
        final long number;
        final String error; // null: acknowledged
        final List<Run> drainedWith;
        int count = 1;
        long untilMs;

        Run(TopicPartition key, long first, long number, String error, List<Run> drainedWith) {
            this.key = key;
            this.first = first;
            this.number = number;
            this.error = error;
            this.drainedWith = drainedWith;
        }

        boolean isContinuedBy(long offset, long nextNumber, String nextError) {
            boolean follows = first == UNKNOWN_OFFSET ? offset == UNKNOWN_OFFSET : offset == first + count;
            return follows && nextNumber == number + count && count < Integer.MAX_VALUE
                && (error == null ? nextError == null : error.equals(nextError));
        }
    }

    private final LongAdder sent = new LongAdder();
    private final boolean isTransactional;
    private final Map<TopicPartition, Counted<Run>> partitions = new HashMap<>(); // guarded by this, as is all that follows
    private List<Run> runs = new ArrayList<>();
    private Counted<Run> last;
    private long answered;

    /** The account of a producer with this configuration. */
    Acks(Map<String, ?> configs) {
        super(configs, configs.get("client.id") == null ? "producer" : configs.get("client.id").toString());
        isTransactional = configs.get("transactional.id") != null;
    }

    /** Count a record on its way. */
    void sending() {
        sent.increment();
    }

    /** Count an answer. A negative offset is unknown; `error` names why a record was given up, null: it was acknowledged. */
    synchronized void answered(String topic, int partition, long offset, String error) {
        answered++;
        Counted<Run> at = last;
        if (at == null || at.key.partition() != partition || !at.key.topic().equals(topic)) {
            at = last = partitions.computeIfAbsent(new TopicPartition(topic, partition), Counted::new);
        }
        long number = at.count++;
        long known = Math.max(offset, UNKNOWN_OFFSET);
        if (at.open != null && at.open.drainedWith == runs && at.open.isContinuedBy(known, number, error)) {
            at.open.count++;
        } else if (hasRoom(runs.size())) {
            at.open = new Run(at.key, known, number, error, runs);
            runs.add(at.open);
        } else {
            at.open = null;
            return;
        }
        at.open.untilMs = nowMs();
    }

    @Override
    String refusal() {
        return isTransactional ? "it is transactional, and an interceptor does not see which transactions are committed" : "";
    }

    @Override
    void writeStart() {
        add(event("start").put("role", "producer").put("group", null).list("topics").end().put("reset", "earliest"));
    }

    @Override
    void drain() {
        List<Run> drained;
        synchronized (this) {
            drained = runs;
            runs = new ArrayList<>();
        }
        for (Run run : drained) {
            add(run.error == null ? ack(run) : failure(run));
        }
    }

    private Line ack(Run run) {
        long last = run.first == UNKNOWN_OFFSET ? UNKNOWN_OFFSET : run.first + run.count - 1;
        Line line = line("ack", run).put("first", run.first).put("last", last).put("count", run.count);
        return line.put("t_sent_ms", null).put("t_acked_ms", run.untilMs).put("latency_max_us", null).list("latency").end();
    }

    private Line failure(Run run) {
        return line("send_failure", run).put("error", run.error).put("t_sent_ms", null).put("t_failed_ms", run.untilMs);
    }

    private Line line(String kind, Run run) {
        Line line = event(kind).put("producer", writer()).put("topic", run.key.topic()).put("partition", run.key.partition());
        return line.put("seq_first", run.number).put("seq_last", run.number + run.count - 1);
    }

    @Override
    synchronized String missing() {
        long open = sent.sum() - answered;
        return open == 0 ? "" : open + " records were neither acknowledged nor given up when the producer was closed";
    }
}
