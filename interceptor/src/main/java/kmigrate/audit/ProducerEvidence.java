package kmigrate.audit;

import java.util.Map;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/**
 * Writes down what a producer had acknowledged: `interceptor.classes=kmigrate.audit.ProducerEvidence`, `kmigrate.events.folder=/path`.
 * Records pass untouched. No failure of it reaches the application: it is a hole in the account.
 */
public final class ProducerEvidence implements ProducerInterceptor<Object, Object> {
    private Acks acks;

    @Override
    public void configure(Map<String, ?> configs) {
        try {
            Acks configured = new Acks(configs);
            configured.begin();
            acks = configured;
        } catch (Throwable error) { // else the application does not start
            Evidence.warn(error);
        }
    }

    @Override
    public ProducerRecord<Object, Object> onSend(ProducerRecord<Object, Object> record) {
        if (isCollecting()) {
            acks.sending();
        }
        return record;
    }

    @Override
    public void onAcknowledgement(RecordMetadata metadata, Exception exception) {
        if (!isCollecting()) {
            return;
        }
        try {
            String error = exception == null ? null : exception.getClass().getSimpleName();
            boolean isKnown = metadata != null && metadata.topic() != null; // not of a record that was null
            acks.answered(isKnown ? metadata.topic() : "", isKnown ? metadata.partition() : -1, isKnown ? metadata.offset() : -1, error);
        } catch (Throwable failure) { // the producer's own thread, which an Error would end
            acks.fail(failure);
        }
    }

    @Override
    public void close() {
        if (acks != null) {
            acks.end();
        }
    }

    private boolean isCollecting() {
        return acks != null && acks.isCollecting();
    }
}
