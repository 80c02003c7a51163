package kmigrate.audit;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One client's own account, in the lines that the Python clients write (airflow_provider_kmigrate/core/events/model.py).
 *
 * <p>The client's threads only collect, in memory and under a lock that is never held while something is written. A thread of its own
 * writes once a second. What cannot be collected or written keeps its number, and so it is a hole in the account: no audit passes on it.
 */
abstract class Evidence implements Runnable {
    static final String FOLDER = "kmigrate.events.folder";
    static final String QUEUE = "kmigrate.events.queue";
    private static final Logger LOG = LoggerFactory.getLogger(Evidence.class);
    private static final int DEFAULT_QUEUE = 100_000;
    private static final long PERIOD_MS = 1_000;
    private static final int QUIET_PERIODS = 5; // between two heartbeats of a client that has nothing to report
    private static final long CLOSE_MS = 5_000; // that `close` waits for a disk that does not answer
    private static final int NAME_CHARS = 150; // a file's name has 255

    private final long offsetNs = System.currentTimeMillis() * 1_000_000 - System.nanoTime();
    private final CountDownLatch ending = new CountDownLatch(1);
    private final Thread thread = new Thread(this, "kmigrate-evidence");
    private final File folder;
    private final String name;
    private final int bound;
    private boolean isCollecting;
    private final List<String> lines = new ArrayList<>(); // of the thread alone, as is all that follows but the last two
    private String writer;
    private long number;
    private long nowMs;
    private FileOutputStream file;
    private boolean isTorn;
    private long unwritten;
    private String why = "";
    private long dropped; // since the last time that it was written; guarded by this
    private Throwable failure; // guarded by this

    /** An account in the folder of the client's configuration; `name` begins the writer's name. Does nothing yet that could wait. */
    Evidence(Map<String, ?> configs, String name) {
        Object where = configs.get(FOLDER);
        folder = where == null || where.toString().trim().isEmpty() ? null : new File(where.toString().trim());
        this.name = name;
        bound = readQueue(configs.get(QUEUE));
        thread.setDaemon(true);
    }

    private static int readQueue(Object value) {
        try {
            return value == null ? DEFAULT_QUEUE : Math.max(1, Integer.parseInt(value.toString().trim()));
        } catch (NumberFormatException error) {
            LOG.warn("{} is no number: kmigrate keeps at most {} events in memory.", QUEUE, DEFAULT_QUEUE);
            return DEFAULT_QUEUE;
        }
    }

    /** Why this client's account can never be whole, and is ended at once; empty: it can. */
    abstract String refusal();

    /** The first event. */
    abstract void writeStart();

    /** Moves everything that was collected since the last time into lines. */
    abstract void drain();

    /** What the client's own figures show to be missing at its end; empty: nothing. */
    abstract String missing();

    /** Begin to write. Without a folder it does nothing. */
    final void begin() {
        isCollecting = folder != null && refusal().isEmpty();
        if (folder == null) {
            LOG.warn("{} is not set: kmigrate's interceptor writes no events of {}.", FOLDER, name);
        } else {
            thread.start();
        }
    }

    /** False if nothing that is collected would be written. */
    final boolean isCollecting() {
        return isCollecting;
    }

    /** Say that a client goes on without an account. */
    static void warn(Throwable error) {
        LOG.warn("kmigrate's interceptor could not begin, the client goes on without it.", error);
    }

    /** Write the last event. Waits for it, but for no longer than five seconds. */
    final void end() {
        ending.countDown();
        try {
            thread.join(CLOSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** True if one more event may be collected; false, and noted, if `waiting` of them fill the memory for it. */
    final boolean hasRoom(int waiting) {
        if (waiting < bound) {
            return true;
        }
        dropped++;
        return false;
    }

    /** Note that a callback failed: whatever it was called for is missing. */
    final synchronized void fail(Throwable error) {
        dropped++;
        failure = error;
    }

    /** Milliseconds since the epoch, which never run backwards. */
    final long nowMs() {
        return (System.nanoTime() + offsetNs) / 1_000_000;
    }

    /** The name of this account, which is the member's name too. */
    final String writer() {
        return writer;
    }

    /** The next event, as of the time up to which everything is collected. */
    final Line event(String kind) {
        return event(kind, nowMs);
    }

    /** The next event, of its own time. It must be added. */
    final Line event(String kind, long tMs) {
        return new Line(kind, writer, number++, tMs);
    }

    /** Adds a line to what is written next. */
    final void add(Line line) {
        lines.add(line.toString());
    }

    @Override
    public final void run() {
        try {
            writer = newWriterName();
            nowMs = nowMs();
            writeStart();
            String refused = refusal();
            if (!refused.isEmpty()) {
                LOG.warn("kmigrate's interceptor writes no events of {}: {}.", name, refused);
                close(refused);
                return;
            }
            int quiet = 0;
            boolean isOver;
            write();
            do {
                isOver = ending.await(PERIOD_MS, TimeUnit.MILLISECONDS);
                nowMs = nowMs(); // before what is drained: a heartbeat says that nothing older is missing
                drain();
                noteDropped();
                quiet = lines.isEmpty() ? quiet + 1 : QUIET_PERIODS;
                if (quiet >= QUIET_PERIODS) {
                    add(event("heartbeat").put("wall_ms", System.currentTimeMillis()));
                    write();
                    quiet = 0;
                }
            } while (!isOver);
            close(missing());
        } catch (Throwable error) { // the edge of this thread; without its stop the account passes nowhere
            LOG.warn("kmigrate's interceptor has ended, no audit passes on the events of " + name + ".", error);
        }
    }

    private String newWriterName() {
        String process = ManagementFactory.getRuntimeMXBean().getName(); // pid@host
        int at = process.indexOf('@');
        String plain = (name + "@" + process.substring(at + 1)).replaceAll("[^A-Za-z0-9_.-]", "_");
        String random = String.format("%06x", ThreadLocalRandom.current().nextInt(1 << 24));
        return plain.substring(0, Math.min(plain.length(), NAME_CHARS)) + "-" + process.substring(0, Math.max(at, 0)) + "-" + random;
    }

    private void noteDropped() {
        long lost;
        Throwable error;
        synchronized (this) {
            lost = dropped;
            error = failure;
            dropped = 0;
            failure = null;
        }
        if (lost > 0) {
            number++; // the hole
            String cause = error == null ? "more than " + bound + " waited to be written (" + QUEUE + ")" : error.toString();
            giveUp(lost, cause);
            add(event("remark").put("code", "events-dropped").put("text", lost + " events are missing: " + clip(cause)));
        }
    }

    private void giveUp(long events, String cause) {
        if (unwritten == 0) {
            LOG.warn("Events of {} are missing, and no audit passes on them: {}. The client itself goes on.", name, cause);
        }
        unwritten += events;
        why = unwritten + " events are missing: " + clip(cause);
    }

    private void write() {
        try {
            if (file == null) {
                Files.createDirectories(folder.toPath());
                File path = new File(folder, writer + ".jsonl");
                Files.createFile(path.toPath()); // a second process of this name fails instead of mixing its numbers in
                file = new FileOutputStream(path, true);
            }
            String text = String.join("", lines);
            file.write((isTorn ? "\n" + text : text).getBytes(StandardCharsets.UTF_8));
            isTorn = false;
        } catch (IOException | RuntimeException error) {
            isTorn = file != null; // a full disk takes a part of a line
            giveUp(lines.size(), error.toString());
        } finally {
            lines.clear();
        }
    }

    /** Write the stop and, once it is on the disk, the marker of a writer that has ended. */
    private void close(String reason) throws IOException {
        String all = why.isEmpty() || reason.isEmpty() ? why + reason : reason + "; " + why;
        add(event("stop").put("clean", all.isEmpty()).put("reason", clip(all)));
        write();
        if (file == null) {
            return;
        }
        file.getFD().sync();
        file.close();
        File unfinished = new File(folder, writer + ".done.tmp");
        String done = "{\"events\": " + number + ", \"clean\": " + all.isEmpty() + "}";
        Files.write(unfinished.toPath(), done.getBytes(StandardCharsets.UTF_8));
        Files.move(unfinished.toPath(), new File(folder, writer + ".done").toPath(), StandardCopyOption.ATOMIC_MOVE);
    }

    private static String clip(String text) {
        return text.substring(0, Math.min(text.length(), 500));
    }
}
