package kmigrate.audit;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;

/**
 * A group member's account: what its polls handed to the application, and what it committed. An interceptor sees neither assignments nor
 * generations, nor where the member began: nothing is claimed about records before the first one of a partition.
 */
final class Deliveries extends Evidence {
    private static final long YEAR_9999_MS = 253_402_300_800_000L;
    private static final int POSITIONS = 1_000; // of one event: a line has at most 1 MiB

    private static final class Run {
        final TopicPartition key;
        final long first;
        final long number;
        final long sentMs; // -1: unknown
        final long fromMs;
        final List<Run> drainedWith;
        final TreeMap<Integer, Integer> latency = new TreeMap<>();
        long untilMs;
        long gapMs;
        int count;

        Run(TopicPartition key, long first, long number, long sentMs, long nowMs, List<Run> drainedWith) {
            this.key = key;
            this.first = first;
            this.number = number;
            this.sentMs = sentMs;
            this.drainedWith = drainedWith;
            fromMs = untilMs = nowMs;
        }

        boolean isContinuedBy(long offset) {
            return offset == first + count && count < Integer.MAX_VALUE;
        }

        void add(long sentMs, long nowMs) {
            if (count > 0) {
                gapMs = Math.max(gapMs, nowMs - Math.max(untilMs, sentMs));
                untilMs = nowMs;
            }
            count++;
            if (sentMs >= 0) {
                latency.merge(bucketOf(Math.max(0, nowMs - sentMs) * 1_000), 1, Integer::sum);
            }
        }

        /** `latency_bucket` of core/events/model.py. */
        private static int bucketOf(long us) {
            int shift = Math.max(0, 64 - Long.numberOfLeadingZeros(us) - 7);
            return 64 * shift + (int) (us >> shift);
        }
    }

    private static final class Accepted {
        final long atMs;
        final List<TopicPartition> keys = new ArrayList<>();
        final List<Long> offsets = new ArrayList<>();

        Accepted(long atMs) {
            this.atMs = atMs;
        }
    }

    private final String group;
    private final Set<String> topics = new HashSet<>(); // that are in the account; of its thread alone
    private final Map<TopicPartition, Counted<Run>> partitions = new HashMap<>(); // guarded by this, as is all that follows
    private List<Run> runs = new ArrayList<>();
    private List<Accepted> commits = new ArrayList<>();
    private int positions;

    /** The account of a consumer with this configuration. */
    Deliveries(Map<String, ?> configs) {
        super(configs, nameOf(configs));
        Object id = configs.get("group.id");
        group = id == null ? "" : id.toString();
    }

    private static String nameOf(Map<String, ?> configs) {
        Object name = configs.get("client.id") == null ? configs.get("group.id") : configs.get("client.id");
        return name == null ? "consumer" : name.toString();
    }

    /** Count what a poll hands to the application. */
    synchronized void delivered(ConsumerRecords<?, ?> records) {
        long nowMs = nowMs();
        for (TopicPartition key : records.partitions()) {
            Counted<Run> at = partitions.computeIfAbsent(key, Counted::new);
            for (ConsumerRecord<?, ?> record : records.records(key)) {
                count(at, record.offset(), sentMs(record), nowMs);
            }
        }
    }

    private void count(Counted<Run> at, long offset, long sentMs, long nowMs) {
        if (at.open == null || at.open.drainedWith != runs || !at.open.isContinuedBy(offset)) {
            at.open = hasRoom(runs.size() + positions) ? new Run(at.key, offset, at.count, sentMs, nowMs, runs) : null;
            if (at.open != null) {
                runs.add(at.open);
            }
        }
        if (at.open != null) {
            at.open.add(sentMs, nowMs);
        }
        at.count++;
    }

    private static long sentMs(ConsumerRecord<?, ?> record) {
        boolean isKnown = record.timestampType() == TimestampType.CREATE_TIME && record.timestamp() < YEAR_9999_MS;
        return isKnown ? Math.max(-1, record.timestamp()) : -1;
    }

    /** Note offsets that the coordinator has accepted. */
    synchronized void committed(Map<TopicPartition, OffsetAndMetadata> offsets) {
        Accepted accepted = new Accepted(nowMs());
        for (Map.Entry<TopicPartition, OffsetAndMetadata> each : offsets.entrySet()) {
            if (hasRoom(runs.size() + positions)) {
                accepted.keys.add(each.getKey());
                accepted.offsets.add(each.getValue().offset());
                positions++;
            }
        }
        commits.add(accepted);
    }

    @Override
    String refusal() {
        return group.isEmpty() ? "it has no group.id, and an audit judges groups" : "";
    }

    @Override
    void writeStart() {
        writeStart(null);
    }

    private void writeStart(String topic) {
        Line line = event("start").put("role", "consumer").put("group", group).list("topics");
        add((topic == null ? line : line.item(topic)).end().put("reset", "latest"));
    }

    @Override
    void drain() {
        List<Run> drained;
        List<Accepted> accepted;
        synchronized (this) {
            drained = runs;
            accepted = commits;
            runs = new ArrayList<>();
            commits = new ArrayList<>();
            positions = 0;
        }
        for (Run run : drained) {
            if (topics.add(run.key.topic())) {
                writeStart(run.key.topic()); // all its partitions are due to a group that reads one
            }
            add(delivery(run));
        }
        accepted.forEach(this::writeCommit);
    }

    private Line delivery(Run run) {
        Line line = member(event("delivery")).put("topic", run.key.topic()).put("partition", run.key.partition());
        line.put("first", run.first).put("last", run.first + run.count - 1).put("count", run.count).put("seq", run.number);
        line.put("t_first_ms", run.fromMs).put("t_last_ms", run.untilMs);
        line = run.sentMs < 0 ? line.put("t_sent_ms", null) : line.put("t_sent_ms", run.sentMs);
        line.put("gap_ms", run.gapMs).put("producer", null).put("producer_seq", null).list("latency");
        for (Map.Entry<Integer, Integer> each : run.latency.entrySet()) {
            line.row(null, each.getKey(), each.getValue());
        }
        return line.end();
    }

    private void writeCommit(Accepted accepted) {
        for (int from = 0; from < accepted.keys.size(); from += POSITIONS) {
            Line line = member(event("commit", accepted.atMs)).list("offsets");
            for (int at = from; at < Math.min(from + POSITIONS, accepted.keys.size()); at++) {
                line.row(accepted.keys.get(at).topic(), accepted.keys.get(at).partition(), accepted.offsets.get(at));
            }
            add(line.end().put("ok", true).put("error", null));
        }
    }

    private Line member(Line line) {
        return line.put("group", group).put("member", writer()).put("generation", null);
    }

    @Override
    String missing() {
        return "";
    }
}
