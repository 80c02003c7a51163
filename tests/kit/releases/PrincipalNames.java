import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * The name that a release of Kafka gives a TLS client: a line of standard input is {"subject" or "pem", "rules"}, one of standard output the
 * name as a JSON text, or null where Kafka refuses the rules or the client.
 */
public final class PrincipalNames {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(final String[] arguments) throws Exception {
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(JSON.writeValueAsString(nameOf(JSON.readTree(line))));
        }
    }

    private static String nameOf(final JsonNode client) throws Exception {
        final String subject = client.has("pem") ? subjectOf(client.get("pem").asText()) : client.get("subject").asText();
        try {
            return SslPrincipalMapper.fromRules(client.get("rules").asText()).getName(subject);
        } catch (final Exception refused) {
            return null;
        }
    }

    private static String subjectOf(final String pem) throws Exception {
        final ByteArrayInputStream bytes = new ByteArrayInputStream(pem.getBytes(StandardCharsets.UTF_8));
        return ((X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(bytes)).getSubjectX500Principal().getName();
    }
}
