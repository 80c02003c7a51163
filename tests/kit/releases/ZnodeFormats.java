import com.fasterxml.jackson.databind.JsonMappingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.TokenInformation;
import org.apache.kafka.server.common.MetadataVersion;

/**
 * Which versions of each znode a release of Kafka writes, and which its own readers take: each is asked with the versions 0 to 9 and with
 * none. Prints one JSON object. Scala's objects, and classes that moved between releases, are found by name.
 */
public final class ZnodeFormats {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int HIGHEST = 9;
    private static final Map<String, Object> FORMATS = new TreeMap<>();

    private interface Reader {
        Object read(byte[] data) throws Exception;
    }

    public static void main(final String[] arguments) throws Exception {
        final Object none = module("scala.None$");
        final Object noItems = module("scala.collection.immutable.Nil$");
        final Object noPairs = call(module("scala.collection.immutable.Map$"), "empty");
        final Object noMembers = call(module("scala.collection.immutable.Set$"), "empty");
        final MetadataVersion newest = MetadataVersion.fromVersionString("3.6");
        final Object broker = call(module("kafka.cluster.Broker$"), "apply", 1, noItems, none);
        final KafkaPrincipal alice = new KafkaPrincipal("User", "a");
        final Object stat = make(Class.forName("org.apache.zookeeper.data.Stat"));
        final Class<?> ids = Class.forName("org.apache.kafka.server.common.ProducerIdsBlock");
        final Object empty = Class.forName("org.apache.kafka.metadata.migration.ZkMigrationLeadershipState").getField("EMPTY").get(null);

        describe("/brokers/ids/[id]", "{'version':%s,'host':'h','port':1,'jmx_port':-1,'timestamp':'1','endpoints':['PLAINTEXT://h:1'],"
                + "'listener_security_protocol_map':{'PLAINTEXT':'PLAINTEXT'},'features':{}}",
            data -> znode("BrokerId", "decode", 1, data),
            (byte[]) call(call(module("kafka.zk.BrokerInfo$"), "apply", broker, newest, -1), "toJsonBytes"));
        describe("/brokers/topics/[topic]", "{'version':%s,'topic_id':'AAAAAAAAAAAAAAAAAAAAAQ','partitions':{'0':[1]},"
                + "'adding_replicas':{},'removing_replicas':{}}",
            data -> znode("Topic", "decode", "t", data),
            znode("Topic", "encode", none, noPairs), znode("Topic", "encode", some(new Uuid(0, 1)), noPairs));
        final String state = "{'version':%s,'controller_epoch':1,'leader':1,'leader_epoch':1,'isr':[1]}";
        final Object found = znode("TopicPartitionState", "decode", bytes(state, 1), stat);
        describe("/brokers/topics/[topic]/partitions/[partition]/state", state,
            data -> znode("TopicPartitionState", "decode", data, stat), znode("TopicPartitionState", "encode", call(found, "get")));
        describe("/cluster/id", "{'version':'%s','id':'x'}", data -> znode("ClusterId", "fromJson", data), znode("ClusterId", "toJson", "x"));
        describe("/config/[kind]/[name]", "{'version':%s,'config':{}}",
            data -> znode("ConfigEntity", "decode", data), znode("ConfigEntity", "encode", new Properties()));
        describe("/config/changes/[change]", "{'version':%s,'entity_path':'topics/t','entity_type':'topics','entity_name':'t'}",
            data -> {
                final Object manager = make(Class.forName("kafka.server.ZkConfigManager"), null, call(noPairs, "updated", "topics", null));
                final Object handler = call(manager, "ConfigChangedNotificationHandler");
                try {
                    return call(handler, "processNotification", data);
                } catch (final InvocationTargetException failed) { // it goes on to its ZooKeeper, unless it does not know the version
                    if (failed.getCause() instanceof IllegalArgumentException || failed.getCause() instanceof JsonMappingException) {
                        throw failed;
                    }
                    return data;
                }
            },
            znode("ConfigEntityChangeNotificationSequence", "encode", "topics/t"));
        describe("/controller", "{'version':%s,'brokerid':1,'timestamp':'1','kraftControllerEpoch':-1}",
            data -> znode("Controller", "decode", data), znode("Controller", "encode", 1, 1L, -1));
        describe("/delegation_token/tokens/[token]", "{'version':%s,'owner':'User:a','tokenRequester':'User:a','renewers':[],"
                + "'issueTimestamp':1,'maxTimestamp':1,'expiryTimestamp':1,'tokenId':'x'}",
            data -> znode("DelegationTokenInfo", "decode", data),
            znode("DelegationTokenInfo", "encode", new TokenInformation("x", alice, List.of(), 1, 1, 1)));
        describe("/feature", "{'version':%s,'features':{},'status':1}", data -> znode("Feature", "decode", data),
            znode("Feature", "encode", call(module("kafka.zk.FeatureZNode$"), "apply", newest, module("kafka.zk.FeatureZNodeStatus$Enabled$"), noPairs)));
        describe("/kafka-acl/[kind]/[name]",
            "{'version':%s,'acls':[{'principal':'User:a','permissionType':'Allow','operation':'Read','host':'*'}]}",
            data -> znode("Resource", "decode", data, stat), znode("Resource", "encode", noMembers));
        describe("/latest_producer_id_block", "{'version':%s,'broker':1,'block_start':'0','block_end':'999'}",
            data -> znode("ProducerIdBlock", "parseProducerIdBlockData", data),
            znode("ProducerIdBlock", "generateProducerIdBlockJson", make(ids, 1, 0L, 1000)));
        describe("/migration", "{'version':%s,'kraft_metadata_offset':1,'kraft_controller_id':1,'kraft_metadata_epoch':1,'kraft_controller_epoch':1}",
            data -> znode("Migration", "decode", data, 1, 1L), znode("Migration", "encode", empty));
        System.out.println(JSON.writeValueAsString(FORMATS));
    }

    private static void describe(final String path, final String sample, final Reader reader, final Object... written) throws Exception {
        final List<Integer> versions = new ArrayList<>();
        for (final Object data : written) {
            final JsonNode version = JSON.readTree((byte[]) data).get("version");
            if (!versions.contains(version.asInt())) {
                versions.add(version.asInt());
            }
        }
        final List<Integer> read = new ArrayList<>();
        if (takes(reader, bytes(sample.replaceFirst("'version':'?%s'?,", ""), 0))) {
            read.add(null);
        }
        for (int version = 0; version <= HIGHEST; version++) {
            if (takes(reader, bytes(sample, version))) {
                read.add(version);
            }
        }
        FORMATS.put(path, Map.of("written", versions, "read", read));
    }

    /** Whether a reader makes something of it; nothing found, and the left of two possible answers, are refusals. */
    private static boolean takes(final Reader reader, final byte[] data) throws Exception {
        try {
            final String answer = String.valueOf(reader.read(data));
            return !answer.equals("None") && !answer.startsWith("Left(");
        } catch (final InvocationTargetException refused) {
            return false;
        }
    }

    private static byte[] bytes(final String sample, final int version) {
        return String.format(sample.replace('\'', '"'), version).getBytes(StandardCharsets.UTF_8);
    }

    private static Object znode(final String name, final String act, final Object... arguments) throws Exception {
        return call(module("kafka.zk." + name + "ZNode$"), act, arguments);
    }

    private static Object some(final Object value) throws Exception {
        return make(Class.forName("scala.Some"), value);
    }

    private static Object module(final String name) throws Exception {
        return Class.forName(name).getField("MODULE$").get(null);
    }

    private static Object make(final Class<?> type, final Object... arguments) throws Exception {
        for (final Constructor<?> constructor : type.getConstructors()) {
            if (fits(constructor.getParameterTypes(), arguments)) {
                return constructor.newInstance(arguments);
            }
        }
        throw new NoSuchMethodException(type + " " + List.of(type.getConstructors()));
    }

    private static Object call(final Object owner, final String name, final Object... arguments) throws Exception {
        for (final Method method : owner.getClass().getMethods()) {
            if (method.getName().equals(name) && fits(method.getParameterTypes(), arguments)) {
                method.setAccessible(true);
                return method.invoke(owner, arguments);
            }
        }
        throw new NoSuchMethodException(owner.getClass() + "." + name);
    }

    private static boolean fits(final Class<?>[] types, final Object[] arguments) {
        boolean all = types.length == arguments.length;
        for (int i = 0; all && i < types.length; i++) {
            final Class<?> type = types[i] == int.class ? Integer.class : types[i] == long.class ? Long.class : types[i];
            all = arguments[i] == null || type.isInstance(arguments[i]);
        }
        return all;
    }
}
