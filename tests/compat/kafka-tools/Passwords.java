import java.io.FileInputStream;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;

/**
 * Makes, describes and deletes a password with the calls of kafka-configs.sh, which is not among the
 * tools that we have: `java Passwords.java BOOTSTRAP PROPERTIES USER MECHANISM`. The test is in
 * ../test_sasl.py.
 */
public class Passwords {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[1])) {
            settings.load(file);
        }
        settings.put("bootstrap.servers", arguments[0]);
        String user = arguments[2];
        ScramMechanism mechanism = ScramMechanism.fromMechanismName(arguments[3]);
        ScramCredentialInfo info = new ScramCredentialInfo(mechanism, 8192);
        try (Admin admin = Admin.create(settings)) {
            admin.alterUserScramCredentials(
                List.of(new UserScramCredentialUpsertion(user, info, "tango"))).all().get();
            System.out.println(
                admin.describeUserScramCredentials(List.of(user)).description(user).get());
            admin.alterUserScramCredentials(
                List.of(new UserScramCredentialDeletion(user, mechanism))).all().get();
            System.out.println(admin.describeUserScramCredentials().users().get());
        }
    }
}
