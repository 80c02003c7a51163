import java.lang.reflect.Field;

/**
 * An agent in a running broker: the thread whose name ends with the argument ends when it next looks which controller it serves, as it does in
 * Kafka 3.9.2 when its new client's metrics exist already. An exception elsewhere in it would end the whole broker.
 */
public final class BreakThread {
    public static void agentmain(String name) throws ReflectiveOperationException {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().endsWith(name)) {
                Field isForZooKeeper = open(thread, "isNetworkClientForZkController");
                open(thread, "networkClientFactory").set(thread, null);
                isForZooKeeper.setBoolean(thread, !isForZooKeeper.getBoolean(thread));
                return;
            }
        }
        throw new IllegalArgumentException("no thread's name ends with " + name);
    }

    private static Field open(Thread thread, String name) throws ReflectiveOperationException {
        Field field = thread.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }
}
