package kmigrate.audit;

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Writes down what a group's member was handed and committed: `interceptor.classes=kmigrate.audit.ConsumerEvidence`,
 * `kmigrate.events.folder=/path`. Records pass untouched. No failure of it reaches the application: it is a hole in the account.
 */
public final class ConsumerEvidence implements ConsumerInterceptor<Object, Object> {
    private Deliveries deliveries;

    @Override
    public void configure(Map<String, ?> configs) {
        try {
            Deliveries configured = new Deliveries(configs);
            configured.begin();
            deliveries = configured;
        } catch (Throwable error) { // else the application does not start
            Evidence.warn(error);
        }
    }

    @Override
    public ConsumerRecords<Object, Object> onConsume(ConsumerRecords<Object, Object> records) {
        if (isCollecting()) {
            try {
                deliveries.delivered(records);
            } catch (Throwable failure) { // the application's own thread
                deliveries.fail(failure);
            }
        }
        return records;
    }

    @Override
    public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
        if (isCollecting()) {
            try {
                deliveries.committed(offsets);
            } catch (Throwable failure) { // the application's own thread
                deliveries.fail(failure);
            }
        }
    }

    @Override
    public void close() {
        if (deliveries != null) {
            deliveries.end();
        }
    }

    private boolean isCollecting() {
        return deliveries != null && deliveries.isCollecting();
    }
}
