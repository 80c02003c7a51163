package kmigrate.audit;

/** Builds one event as a line of JSON. Names from outside, such as a client id, can end neither a text nor the line. */
final class Line {
    private static final int VERSION = 2; // SCHEMA_VERSION of airflow_provider_kmigrate/core/events/model.py
    private final StringBuilder json = new StringBuilder(256);

    /** Begins an event of a kind; `number` counts the writer's events from 0, `tMs` is in ms since the epoch. */
    Line(String kind, String writer, long number, long tMs) {
        json.append("{\"v\":").append(VERSION);
        put("kind", kind).put("writer", writer).put("event_seq", number).put("t_ms", tMs);
    }

    /** Adds a text; null is JSON's null. */
    Line put(String name, String value) {
        name(name);
        text(value);
        return this;
    }

    /** Adds a number. */
    Line put(String name, long value) {
        name(name).append(value);
        return this;
    }

    /** Adds a truth value. */
    Line put(String name, boolean value) {
        name(name).append(value);
        return this;
    }

    /** Begins a list; `item`, `row` or `text` add to it, and `end` ends it. */
    Line list(String name) {
        name(name).append('[');
        return this;
    }

    /** Adds a text to the list. */
    Line item(String value) {
        comma();
        text(value);
        return this;
    }

    /** Adds a row of numbers to the list, which begins with `topic` unless that is null. */
    Line row(String topic, long first, long second) {
        comma();
        json.append('[');
        if (topic != null) {
            text(topic);
            json.append(',');
        }
        json.append(first).append(',').append(second).append(']');
        return this;
    }

    /** Ends the list. */
    Line end() {
        json.append(']');
        return this;
    }

    /** The line, with its end. */
    @Override
    public String toString() {
        return json + "}\n";
    }

    private StringBuilder name(String name) {
        return json.append(",\"").append(name).append("\":");
    }

    private void comma() {
        if (json.charAt(json.length() - 1) != '[') {
            json.append(',');
        }
    }

    private void text(String value) {
        if (value == null) {
            json.append("null");
            return;
        }
        json.append('"');
        for (int at = 0; at < value.length(); at++) {
            char each = value.charAt(at);
            if (each == '"' || each == '\\') {
                json.append('\\').append(each);
            } else if (each >= ' ' && each <= '~') {
                json.append(each);
            } else {
                json.append(String.format("\\u%04x", (int) (isLoneSurrogate(value, at) ? '\ufffd' : each)));
            }
        }
        json.append('"');
    }

    /** True for half a character, which no reader of UTF-8 accepts. */
    private static boolean isLoneSurrogate(String value, int at) {
        char each = value.charAt(at);
        if (Character.isHighSurrogate(each)) {
            return at + 1 == value.length() || !Character.isLowSurrogate(value.charAt(at + 1));
        }
        return Character.isLowSurrogate(each) && (at == 0 || !Character.isHighSurrogate(value.charAt(at - 1)));
    }
}
