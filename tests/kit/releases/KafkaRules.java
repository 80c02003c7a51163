import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Function;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.server.common.MetadataVersion;

/**
 * What a release of Kafka knows of its servers' keys. `describe` prints it as one JSON object. `validate` reads a JSON object of keys and
 * values a line, and says for each, in a line of JSON, why the release's own KafkaConfig refuses it; an empty text if it does not.
 *
 * Classes that moved between releases are found by name.
 */
public final class KafkaRules {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** Classes of Kafka that read keys of a server's file which KafkaConfig does not define. */
    private static final String[] READERS = {
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
        "org.apache.kafka.common.metrics.JmxReporter",
        "org.apache.kafka.common.config.AbstractConfig",
            };

    /** Constants with which keys begin that KafkaConfig does not define: of one listener, a provider, the metrics' context. */
    private static final String[][] PREFIXES = {
        {"org.apache.kafka.common.network.ListenerName", "CONFIG_STATIC_PREFIX"},
        {"org.apache.kafka.common.config.AbstractConfig", "CONFIG_PROVIDERS_CONFIG"},
        {"org.apache.kafka.clients.CommonClientConfigs", "METRICS_CONTEXT_PREFIX"},
    };

    public static void main(final String[] arguments) throws Exception {
        if (arguments[0].equals("describe")) {
            System.out.println(JSON.writeValueAsString(describe()));
        } else {
            validate();
        }
    }

    private static Map<String, Object> describe() throws Exception {
        final Map<String, Object> rules = new TreeMap<>();
        rules.put("release", AppInfoParser.getVersion());
        rules.put("keys", describeKeys());
        rules.put("topics", describeTopics());
        rules.put("readers", describeReaders());
        rules.put("prefixes", describePrefixes());
        rules.put("requests", describeRequests());
        rules.put("metadata_versions", describeMetadataVersions());
        return rules;
    }

    private static Map<String, Object> describeKeys() throws Exception {
        final ConfigDef definitions = (ConfigDef) call("kafka.server.KafkaConfig", "configDef");
        final Object dynamic = Class.forName("kafka.server.DynamicBrokerConfig$").getField("MODULE$").get(null);
        final Map<?, ?> modes = (Map<?, ?>) dynamic.getClass().getMethod("dynamicConfigUpdateModes").invoke(dynamic);
        final Map<String, Object> keys = new TreeMap<>();
        for (final ConfigDef.ConfigKey key : definitions.configKeys().values()) {
            final Map<String, Object> facts = new TreeMap<>();
            facts.put("type", key.type.name().toLowerCase());
            if (key.hasDefault()) {
                facts.put("default", ConfigDef.convertToString(key.defaultValue, key.type));
            }
            if (key.validator != null) {
                facts.put("valid", key.validator.toString().replaceAll("\\$\\$Lambda.*|@[0-9a-f]+$", ""));
            }
            facts.put("mode", modes.containsKey(key.name) ? modes.get(key.name) : "read-only");
            facts.put("secret", call("kafka.server.KafkaConfig", "maybeSensitive", call("kafka.server.KafkaConfig", "configType", key.name)));
            facts.put("synonyms", synonyms(key.name));
            keys.put(key.name, facts);
        }
        final Object dynamicOnly = Class.forName("kafka.server.DynamicConfig$Broker$").getField("MODULE$").get(null);
        for (final Object name : (Set<?>) dynamicOnly.getClass().getMethod("names").invoke(dynamicOnly)) {
            keys.putIfAbsent((String) name, new TreeMap<>(Map.of("type", "long", "mode", "dynamic-only"))); // rates of quotas
        }
        return keys;
    }

    /** All names of one setting as Kafka takes them, the strongest first. */
    private static List<String> synonyms(final String key) throws Exception {
        final List<String> names = new ArrayList<>();
        final Object all = call("kafka.server.DynamicBrokerConfig", "brokerConfigSynonyms", key, false);
        final Object iterator = all.getClass().getMethod("iterator").invoke(all); // of Scala
        final Method hasNext = Class.forName("scala.collection.Iterator").getMethod("hasNext");
        final Method next = Class.forName("scala.collection.Iterator").getMethod("next");
        while ((Boolean) hasNext.invoke(iterator)) {
            names.add((String) next.invoke(iterator));
        }
        final Map<?, ?> filled = (Map<?, ?>) call("kafka.server.KafkaConfig", "populateSynonyms", Map.of(key, "1"));
        for (final Object other : new TreeSet<Object>(filled.keySet())) {
            if (!names.contains(other)) {
                names.add((String) other);
            }
        }
        return names;
    }

    /** Topic setting to the server's keys for its default, the strongest first, each with what its unit is multiplied by. */
    private static Map<String, Object> describeTopics() throws Exception {
        final Class<?> holder = Class.forName("org.apache.kafka.server.config.ServerTopicConfigSynonyms");
        final Map<String, Object> topics = new TreeMap<>();
        for (final Map.Entry<?, ?> entry : ((Map<?, ?>) holder.getField("ALL_TOPIC_CONFIG_SYNONYMS").get(null)).entrySet()) {
            final List<Object> keys = new ArrayList<>();
            for (final Object synonym : (List<?>) entry.getValue()) {
                keys.add(List.of(get(synonym, "name"), factor((Function<?, ?>) get(synonym, "converter"))));
            }
            topics.put((String) entry.getKey(), keys);
        }
        return topics;
    }

    @SuppressWarnings("unchecked")
    private static long factor(final Function<?, ?> converter) {
        try {
            return Long.parseLong(((Function<String, String>) converter).apply("1"));
        } catch (final RuntimeException wrong) {
            return 1; // not a number
        }
    }

    /** Class to the keys that it names in constants, or (Scala) in accessors whose names end with Prop. */
    private static Map<String, Object> describeReaders() throws Exception {
        final Map<String, Object> readers = new TreeMap<>();
        for (final String name : READERS) {
            final Class<?> reader;
            try {
                reader = Class.forName(name);
            } catch (final ClassNotFoundException gone) {
                continue;
            }
            final Set<String> keys = new TreeSet<>();
            for (final Field field : reader.getFields()) {
                if (Modifier.isStatic(field.getModifiers()) && field.getType() == String.class) {
                    keys.add((String) field.get(null));
                }
            }
            for (final Method method : reader.getMethods()) {
                if (Modifier.isStatic(method.getModifiers()) && method.getName().endsWith("Prop") && method.getParameterCount() == 0) {
                    keys.add((String) method.invoke(null));
                }
            }
            keys.removeIf(key -> !key.matches("[a-z][a-z0-9]*(\\.[a-z0-9]+)+"));
            if (!keys.isEmpty()) {
                readers.put(name, keys);
            }
        }
        return readers;
    }

    private static Set<String> describePrefixes() throws Exception {
        final Set<String> prefixes = new TreeSet<>();
        for (final String[] constant : PREFIXES) {
            final Field field = Class.forName(constant[0]).getDeclaredField(constant[1]);
            field.setAccessible(true); // one is private
            final String prefix = (String) field.get(null);
            prefixes.add(prefix.endsWith(".") ? prefix : prefix + ".");
        }
        return prefixes;
    }

    /** Requests that are served: key, lowest and highest stable version, and the kinds of nodes that serve them. */
    private static Map<String, Object> describeRequests() throws Exception {
        final Map<String, Object> requests = new TreeMap<>();
        for (final ApiKeys request : ApiKeys.values()) {
            final Set<String> listeners = new TreeSet<>();
            for (final ApiMessageType.ListenerType listener : request.messageType.listeners()) {
                listeners.add(listener.name().toLowerCase());
            }
            final int lowest = request.oldestVersion();
            final int highest = request.latestVersion(false);
            if (lowest <= highest && !listeners.isEmpty()) {
                requests.put(request.name, Map.of("key", (int) request.id, "listeners", listeners, "versions", List.of(lowest, highest)));
            }
        }
        return requests;
    }

    /** Name to feature level, of those that KRaft has. */
    private static Map<String, Object> describeMetadataVersions() {
        final Map<String, Object> levels = new TreeMap<>();
        for (final MetadataVersion version : MetadataVersion.VERSIONS) {
            if (version.featureLevel() > 0) {
                levels.put(version.version(), (int) version.featureLevel());
            }
        }
        return levels;
    }

    private static void validate() throws Exception {
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            final Properties properties = new Properties();
            JSON.readTree(line).fields().forEachRemaining(field -> properties.setProperty(field.getKey(), field.getValue().asText()));
            System.out.println(JSON.writeValueAsString(refusal(properties)));
        }
    }

    private static String refusal(final Properties properties) throws Exception {
        try {
            call("kafka.server.KafkaConfig", "fromProps", properties, false);
            return "";
        } catch (final InvocationTargetException refused) {
            return String.valueOf(refused.getCause());
        }
    }

    private static Object get(final Object from, final String name) throws Exception {
        return from.getClass().getMethod(name).invoke(from);
    }

    /** The answer of a static method, found by its name and arguments. */
    private static Object call(final String owner, final String name, final Object... arguments) throws Exception {
        for (final Method method : Class.forName(owner).getMethods()) {
            if (method.getName().equals(name) && fits(method.getParameterTypes(), arguments)) {
                return method.invoke(null, arguments);
            }
        }
        throw new NoSuchMethodException(owner + "." + name);
    }

    private static boolean fits(final Class<?>[] types, final Object[] arguments) {
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            if (!(types[i] == boolean.class ? arguments[i] instanceof Boolean : types[i].isInstance(arguments[i]))) {
                return false;
            }
        }
        return true;
    }
}
