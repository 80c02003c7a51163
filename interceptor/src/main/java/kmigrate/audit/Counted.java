package kmigrate.audit;

import org.apache.kafka.common.TopicPartition;

/** A partition, how many of its records were counted, and the run that may still grow; null: none. */
final class Counted<R> {
    final TopicPartition key;
    long count;
    R open;

    Counted(TopicPartition key) {
        this.key = key;
    }
}
