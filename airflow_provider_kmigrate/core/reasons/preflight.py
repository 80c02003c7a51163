"""Entries of what is configured: preflight's findings, nodes' properties files, the cluster file, connections, the probe.

The numbers of B1 to B13 are those of KIP-866's preconditions.
"""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read(r"""
B Preflight
about: preflight: what must be right before the migration begins
when: before anything is changed
intro: Preflight reads everything and changes nothing. The severity of each finding is shown beside its code. *block* stops the DAG at its first task: fix all of them, then clear `preflight`. *not known* does not stop it: the finding says how to find out. *warn* does not stop it. A code can have more than one severity: B1b, B8a, B9f, B14, B15, B17, B18 and B19 block or warn, by what was found. Preflight also reports codes of other letters, which mean the same there as at every other step. All findings are on a page; the task's log has its address. To run it again at any time: `kmigrate_preflight__<cluster>`.

B1a Releases or protocol versions differ
means: A broker registers with the controllers only if its inter.broker.protocol.version is exactly their metadata.version. Brokers of two releases react differently to one controller.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Finish the upgrade of the brokers: one release, and one `inter.broker.protocol.version` in every file and every running broker.
do: Correct `kafka_release` in the cluster file.
do: Controllers of another version, and no broker has moved: empty their directories (G04).
never: Change the protocol version while a migration is under way.
source: KIP-866; BrokerRegistrationRequest, min = max = IBP

B1b A version with known defects, or without what a migration needs
means: *block*: this release or protocol version loses or blocks metadata in a migration, writes no topic ids or /feature, or does not register brokers with several log directories. *warn*: it can be migrated, with the defects, early-access features or unfinished upgrade that the text names.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Find `Kafka version:` in each broker's log. 3.7.1 or later: write it as `kafka_release` into the cluster file. So too Confluent's (`7.9.2-ccs`), whose patch level is not Kafka's: only 7.9 is clear.
do: Otherwise upgrade every broker to Kafka 3.9.2 and raise `inter.broker.protocol.version` to 3.9, as a change of its own. The brokers' controller then writes ids and /feature. After a warning: the same, or decide by each issue.
do: It is higher already: find out what changed the tree.
never: Upgrade, or raise the version, in the middle of a migration. Write a release that not every broker runs. Take a directory out of `log.dirs`: its replicas would be lost. Write an id by hand.
source: bug list of KIP-866, from the release tags; KIP-858, KIP-405, KIP-584; ZkTopicMigrationClient
ask: An unknown patch level: search a broker's log for "Kafka version:", and write it as kafka_release into the cluster file. A vendor's build, or one that was in no test: migrate a test cluster of that build, and roll it back, first.

B2b A controller id is taken
means: A broker has this id, or partitions name it as a replica. One id for two nodes breaks both.
meanwhile: Yes. Nothing was changed.
do: Choose ids that no broker has or ever had, such as 3000 and up. They cannot be changed later.
never: Reuse the id of a broker that was decommissioned.
source: KIP-866; KAFKA-20395

B4b Partitions name a broker that does not exist
means: The copy waits for every id that partitions are assigned to; for a broker that is gone it waits forever.
meanwhile: Yes, with one replica less.
do: List them: `kafka-topics.sh --bootstrap-server $B --describe --under-replicated-partitions`.
do: Reassign them to living brokers: `kafka-reassign-partitions.sh --bootstrap-server $B --reassignment-json-file f.json --execute`, then `--verify`.
never: Give the id to a new broker while data is missing.
source: KRaftMigrationDriver, imageDoesNotContainAllBrokers

B5 Topics are still being deleted
means: The migration does not take such topics over and leaves their files on the disks.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Wait until `/admin/delete_topics` is empty. A deletion that hangs usually waits for a broker that is down: start it.
never: Remove the entries in `/admin/delete_topics`.
source: KAFKA-15605

B7b A log directory has failed
means: In migration mode such a broker halts, and its replicas are gone until it is repaired.
meanwhile: It serves with the replicas that are left.
do: `kafka-log-dirs.sh --bootstrap-server $B --describe | grep '^{'`; look for `error`.
do: Repair or replace the disk, restart the broker, wait for every ISR.
never: Begin the first roll with a failed disk.
source: KAFKA-16431
ask: Let kmigrate's user DESCRIBE the cluster, or run kafka-log-dirs.sh --describe, and search for errors.

B8a A class that is not Kafka's
means: It is unknown whether this authorizer, principal builder or policy works without ZooKeeper. In KRaft mode it runs on the controllers. A builder must implement KafkaPrincipalSerde; alter.config.policy gets other arguments than before.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Ask its maker for the KRaft version, and how to move its rules. Try it on a test cluster.
do: Put its jar on the machines that the text names. Name an authorizer's class for KRaft, and every setting of it that changes, under `quorum.properties: {authorizer.class.name: ...}` in the cluster file. Brokers in KRaft mode get what has `authorizer` in its key, too. Such as `confluent.authorizer.access.rule.providers: CONFLUENT,KRAFT_ACL`; one that names ZooKeeper blocks.
do: Name there what controllers need of other keys (licence, metadata server). A class that controllers shall not load: `client.quota.callback.class: ""` there takes it away from them.
do: Keys of one stage alone: `stage_properties`.
do: A policy: see `alter.config.policy.kraft.compatibility.enable` (3.9.2).
never: Migrate without an authorizer for the time being, or remove the builder: all rights are written for its names.
source: KIP-866; KAFKA-15098; KIP-590, KafkaPrincipalSerde; KAFKA-19026; KIP-1252
ask: Put the jar of each class on the machines that the text names; ask its maker which of the keys a controller needs, and write those under quorum.properties; ask the maker of a principal builder whether it implements KafkaPrincipalSerde.

B8c Znodes that the copy or kmigrate cannot read
means: The copy reads every rule, user and setting. One that it cannot read ends the active controller's process, and its successor's. Of a znode with an unknown version kmigrate could not compare what the copy has made of it.
meanwhile: Yes, as safe as before. Nothing was changed.
do: `zookeeper-shell.sh $ZK get` the path in the text. Find out what wrote it. A version that is unknown: a release of Kafka that kmigrate does not support, or another program.
do: Remove it with that tool. Create it again with `kafka-acls.sh --bootstrap-server $B` or `kafka-configs.sh --bootstrap-server $B`.
never: Delete the whole znode while it holds other rules.
source: ZkAclMigrationClient; AclEntry.fromBytes

B8d Access rules in another ZooKeeper
means: Controllers copy only the rules of the ZooKeeper in which brokers register. After the copy clients other than super users would be refused.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Is it the same ensemble by another name? Compare `zookeeper-shell.sh <url> get /cluster/id` with `$ZK`. If so, continue.
do: List the rules: `kafka-acls.sh --bootstrap-server $B --list`.
do: Add each to the cluster's own ZooKeeper: `kafka-acls.sh --authorizer-properties zookeeper.connect=$ZK --add ...`.
do: Take `authorizer.zookeeper.url` out of every broker's file, restart the brokers one by one, compare `--list`.
never: Take the key out before the rules are there.
source: AclAuthorizer, ZkUrlProp; ZkAclMigrationClient
ask: Resolve names and references on the broker's machine and compare servers and chroot with zookeeper.connect; where they differ, move the rules.

B9a SCRAM users or delegation tokens that would be lost
means: This metadata version does not copy them, or nodes have no common delegation.token.secret.key. Afterwards their owners could not log in.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Raise `inter.broker.protocol.version` to 3.9 first.
do: Tokens: write one `delegation.token.secret.key` into every broker's file, or let unused tokens expire.
never: Migrate first and create the users again. Use different keys.
source: KIP-900; KAFKA-14830; KAFKA-15219

B9d No usable login for the controllers' listener
means: A node that uses SASL towards the controllers without a login for its mechanism does not start: a controller never, a broker when it is rolled. SCRAM has no user there before the copy.
meanwhile: Yes, as safe as before. Nothing was changed.
do: kmigrate's own login, by the text: give the connection of `quorum.conn_id` (or Kafka's) a mechanism that the listener accepts. A cluster with Kerberos alone: GSSAPI, with `kafka/HOST` of each controller in its keytab and `pip install 'airflow-provider-kmigrate[kerberos]'`.
do: SCRAM: use TLS, GSSAPI or PLAIN there: `quorum.security_protocol: SSL` in the cluster file, with `ssl.client.auth: required` under `quorum.properties`, or SASL_SSL and `sasl.mechanism.controller.protocol=PLAIN` in every broker's file. Between brokers SCRAM stays.
do: Write the key of the text into every broker's file; controllers inherit it. No restart is needed.
do: PLAIN on a listener `CONTROLLER`: `listener.name.controller.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="..." user_broker="...";`
do: A JAAS file has it: each controller's service needs it too, with section `controller.KafkaServer` (the listener) or `KafkaServer`.
never: Rely on `sasl.jaas.config` without the prefix: it is ignored. Change the clients' listeners for this.
source: JaasContext.loadServerContext; KAFKA-15513; KIP-900
ask: See that the JAAS file of each service (java.security.auth.login.config), controllers' too, has a section KafkaServer with this mechanism.

B9e A controllers' listener with less protection than was meant
means: The cluster file decides how the controllers' listener is protected. Rendered as PLAINTEXT, any client that reaches the port may write the cluster's metadata.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write into the cluster file what is meant: `quorum.security_protocol: SASL_SSL` with the login of B9d, or SSL with client certificates (B9f).
do: PLAINTEXT is meant, on a closed network: write `quorum.security_protocol: PLAINTEXT`. If brokers' files have another protocol for this listener, choose a `quorum.listener` that none of them names: a change of their map needs a restart (B15).
never: Rely on `listener.name.controller.*` keys in the brokers' files: without the protocol they have no effect.
source: KIP-595; rendered by core/node_files/properties.py

B9f Host names or clients that are not verified, or passwords without TLS
means: Without verified names any certificate of the same CA passes for a broker; without a login any client writes metadata; PLAIN without TLS shows passwords. *block*: what kmigrate would add, a controllers' listener weaker than that between brokers, or a connection that accepts any name. *warn*: what brokers have already, or the cluster file confirms.
meanwhile: Yes, as safe as before. Nothing was changed.
do: The controllers' listener: `quorum.security_protocol: SASL_SSL`, or SSL with `ssl.client.auth: required` under `quorum.properties`; no empty `ssl.endpoint.identification.algorithm` of that listener in the files.
do: It is meant so: write the key in the text, with its value, under `quorum.properties`.
do: A connection: let it verify names (`verify_hostname` true; Kafka: no `ssl.endpoint.identification.algorithm`), or write `verify_hostname: false` into its section of the cluster file.
do: Brokers' files: correct them as a change of its own.
never: Confirm it to make the finding go away: ask who is responsible for the network.
source: KIP-294; RFC 4616: PLAIN needs TLS; KafkaConfig.setZooKeeperClientProperty

B10a Controllers without the brokers' identity towards ZooKeeper
means: Controllers write znodes that brokers own. Without the brokers' identity every write is refused (NoAuth).
meanwhile: Yes, as safe as before. Nothing was changed.
do: Make the `zookeeper.*` keys equal in all files.
do: Check each controller's service: the same `-Djava.security.auth.login.config` with a section `Client`, keystores at the same paths, readable for its user.
never: Open the znodes to every client.
source: KIP-866; KRaftMigrationDriver, "ZooKeeper authentication"
ask: Check on each controller's machine that its service has what the brokers' have: the JAAS section Client, keystores at the same paths.

B10b Answers of ZooKeeper above a megabyte
means: A ZooKeeper client refuses answers above jute.maxbuffer (1 MB): the controller would lose its session again and again and never copy. *block*: a controller has a lower limit. *not known*: its service does not show it.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Compare KAFKA_OPTS of brokers and ZooKeeper. Give the controllers the same `-Djute.maxbuffer`, 4194304 or more.
never: Lower it on the brokers.
source: ZooKeeper administrator's guide
ask: Check that the controllers' services have -Djute.maxbuffer as the brokers' have it (in KAFKA_OPTS), 4 MB or more.

B10c Switches of Java that brokers have and controllers do not
means: Brokers have settings in their command line (`-D`, KAFKA_OPTS) that no file has: TLS, logins, limits, a proxy. A controller without them may not reach ZooKeeper, or log in. *block*: a controller runs without. *not known*: its service does not show them. *warn*: brokers differ.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Add the text's line to each controller's unit (`systemctl edit UNIT`, below `[Service]`), with the brokers' values for `...` and that machine's paths. Restart a controller that runs.
do: TLS alone: write `zookeeper.ssl.client.enable`, `zookeeper.clientCnxnSocket` and the stores (`zookeeper.ssl.truststore.location`, ...) under `quorum.properties` in the cluster file instead.
do: Brokers that differ: give all of them the same KAFKA_OPTS first, as a change of its own.
do: *not read*: let Kafka's user read the file that the text names, as a plain file of at most 256 KiB; of a container, compare it by hand.
never: Take the switches from the brokers to make them equal.
source: KafkaConfig.ZkSslConfigToSystemPropertyMap; ZooKeeper administrator's guide; java(1): @argfiles, JDK_JAVA_OPTIONS; read from /proc/PID
ask: See whether the controllers' start scripts set these switches. Otherwise add the line to each controller's unit (systemctl edit UNIT). A file that was not read: let Kafka's user read it.

B10d A JAAS file without the login towards ZooKeeper
means: ZooKeeper's znodes belong to a SASL identity. A node logs in there with the section `Client` of its JAAS file, or with the one that `-Dzookeeper.sasl.clientconfig` names. Without it a controller is refused each write (NoAuth), and a broker that is started again is, too.
meanwhile: Yes, until such a node starts. Nothing was changed.
do: Write the section into the file that the text names, as the brokers' files have it. Kerberos: `Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="/etc/kafka/kafka.keytab" principal="kafka/HOST@REALM"; };`, the principal's first part as the brokers' is.
do: DIGEST-MD5: `Client { org.apache.zookeeper.server.auth.DigestLoginModule required username="..." password="..."; };`, with the brokers' user.
do: *log in to no ZooKeeper*: take `-Dzookeeper.sasl.client=false` out of that node's service.
do: A controller that runs is restarted. Then clear `preflight`.
never: Open the znodes to every client.
source: JaasUtils.isZkSaslEnabled; ZKClientConfig.LOGIN_CONTEXT_NAME_KEY

B11 Passwords that controllers could not read
means: Dynamic passwords in ZooKeeper are encrypted with password.encoder.secret, which is missing or differs. Controllers would copy something unreadable.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write the brokers' `password.encoder.secret` into every file.
do: Or set the passwords in the files and remove the dynamic ones: `kafka-configs.sh --bootstrap-server $B --alter --entity-type brokers --entity-name N --delete-config <key>`.
never: Change the secret without `password.encoder.old.secret`.
source: ControllerServer.scala, PasswordEncoder.NOOP

B12b ZooKeeper is too old
means: Kafka's client needs ZooKeeper 3.5 or later; controllers could not connect.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Upgrade the ensemble to 3.8, one server at a time.
do: It does not answer: set `4lw.commands.whitelist=srvr` in zoo.cfg, and let Airflow's machine reach its port.
never: Upgrade ZooKeeper in the middle of a migration.
source: ZooKeeper compatibility; Kafka upgrade notes
ask: Ask each server: echo srvr | nc HOST 2181; allow srvr in 4lw.commands.whitelist, and let this machine reach the servers.

B13b Nodes that are no super users
means: Before the copy controllers have no ACL and accept only super users, each other included. Otherwise the quorum gets no leader and no broker registers (measured).
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write the principals of all brokers and controllers into `super.users` of every broker's file. TLS: `openssl x509 -subject -noout -nameopt RFC2253 -in CERT`.
do: Controllers' listener without names (PLAINTEXT, TLS without `ssl.client.auth=required`): secure it, `quorum.security_protocol: SASL_SSL` in the cluster file.
do: Or, if only nodes reach that port: `super.users` under `quorum.properties`, with `User:ANONYMOUS` and all nodes.
never: Set `allow.everyone.if.no.acl.found` for this, or `User:ANONYMOUS` in the brokers' own file.
source: measured: VOTE, AuthorizerNotReadyException; StandardAuthorizer, ControllerApis, CLUSTER_ACTION
ask: Find the names (for TLS the certificates' subjects), and check that super.users has those of brokers and controllers. Brokers' own are read at the handshake; the controllers' cannot be read before they run.

B14 Replication is throttled
means: A restarted replica catches up no faster than the throttle: out of its ISR for hours, and the roll waits.
meanwhile: Yes, as safe as before. Nothing was changed.
do: `kafka-reassign-partitions.sh --bootstrap-server $B --verify` with the file of a reassignment that is over removes it.
do: Or for each broker: `kafka-configs.sh --bootstrap-server $B --alter --entity-type brokers --entity-name N --delete-config leader.replication.throttled.rate,follower.replication.throttled.rate`.
do: For each topic the same with `--entity-type topics` and `leader.replication.throttled.replicas,follower.replication.throttled.replicas`.
never: Remove a throttle while its reassignment is running: ask its owner.
source: measured by others: catch-up under a throttle; reliability

B15 A broker does not run with what its file says
means: The file was edited without a restart, or the start command adds settings. The roll restarts with the file alone, and controllers inherit it. Unimportant keys are a warning.
meanwhile: Yes, until that broker restarts for any reason.
do: See what runs: `kafka-configs.sh --bootstrap-server $B --describe --all --entity-type brokers --entity-name N` (`STATIC_BROKER_CONFIG`).
do: Restart the broker with the edited file as a change of its own, or put back what runs.
do: Move what the start command adds (`--override`) into the file.
never: Let the migration bring the edit into force: the cause of a failure would be unclear.
source: KIP-226, STATIC_BROKER_CONFIG; reliability: one change at a time
ask: Compare kafka-configs.sh --describe --all --entity-type brokers --entity-name N with the file; let kmigrate's user DESCRIBE_CONFIGS the cluster.

B16 Listeners that exist only dynamically
means: A KRaft broker opens its listeners before it reads dynamic settings: it does not start, refuses clients there, or accepts those that it should refuse. If the value of a listener's key is not that of the file, it takes none of its dynamic settings. Controllers never have them (measured). A key store that was exchanged dynamically may be expired, or gone, at the place in the file.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write each setting into the file of the broker that the text names, with the value in force there. No restart is needed.
do: `listeners`, `advertised.listeners`, `listener.security.protocol.map`: restart the broker with its file, then delete the dynamic one: `kafka-configs.sh --bootstrap-server $B --entity-type brokers --entity-name N --alter --delete-config <key>`.
never: Delete a dynamic listener before that restart: its clients are disconnected.
source: measured: listeners refused connections and TLS, no start; KAFKA-17431; SslFactory, CertificateEntries.ensureCompatible; DynamicListenerConfig.validateReconfiguration
ask: Compare with what was set dynamically: `keytool -list -v -keystore STORE` with the file's password opens the store and shows when its certificate ends; it must outlast the migration. Write the present values into the file.

B17 A broker's ZooKeeper is its own machine
means: Controllers inherit zookeeper.connect, and `localhost` leads nowhere on another machine. kmigrate writes the first broker's `host` there instead, once the ZooKeeper connection has that address, too: nothing else shows that the server listens at it.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Name the server in the ZooKeeper connection by the first broker's `host`, with the port of its file. Nothing is restarted.
do: ZooKeeper listens only on its own machine (`clientPortAddress`): open that first. Or write names that every machine resolves into every broker's file, and restart the brokers as a change of its own.
do: A reference (`${file:...}`) is copied as it is: write such names where it leads.
never: Run a tunnel or a proxy on the controllers' machines for this.
source: KIP-866; core.node_files.properties
ask: Look up what the reference in zookeeper.connect stands for, and check that every controller's machine reaches those servers.

B18 Brokers differ where one value decides for all
means: Controllers have one value for the whole cluster, from the first broker's file: rights, defaults or the fate of records would change. The partition count of __consumer_offsets or __transaction_state is that of the broker which creates it; brokers that have started before compute with their own.
meanwhile: As safe as before. Find out who began to change this. Without __consumer_offsets or __transaction_state: only until the first consumer group or transaction appears.
do: Give every broker the same value, and restart those that had another, one by one.
do: Or write the value that you want under `quorum.properties` in the cluster file (not the authorizer or the counts of __consumer_offsets and __transaction_state).
do: *Not known*: each broker's own login or certificate, such as a Kerberos principal with its host. Write the controllers' own under `quorum.properties`; check that each machine has the keytab or key.
never: Move the broker whose values you like to the front of the cluster file. Create __consumer_offsets or __transaction_state by hand.
source: KIP-866; KIP-895; core.node_files.properties; GroupCoordinator startup
ask: Compare the brokers' files: what names a broker's host, or is its own key, the controllers need of their own, under quorum.properties.

B19 A unit's stop ends more than its own node, or less
means: *block*: a stop leaves Kafka running, or ends another node of the machine as well (`kafka-server-stop.sh`, `pkill -f kafka`, units that systemd stops together, or one at the other's start), outside of every gate. *warn*: other services stop with it. *not known*: a script does not show whom it ends.
meanwhile: Yes, until a node of that machine is stopped for any reason.
do: `kmigrate node install CLUSTER.yaml --drop-in write` shows, asks, and writes an empty `ExecStop=`: systemd's own SIGTERM stops Kafka as well. Kafka is not restarted.
do: By hand: `systemctl edit kafka.service`: `[Service]`, below it `ExecStop=` (or the setting of the text) and the lines that must stay; then `systemctl daemon-reload`.
do: A unit is stopped with it: no drop-in takes that back. `systemctl edit --full` of **that** unit: `Wants=` in place of `Requires=`, `BindsTo=` or `PartOf=`, no name in `Conflicts=`; `systemctl daemon-reload`.
do: A script: read it. If it ends its own process alone, continue.
never: Run `kafka-server-stop.sh` on such a machine by hand.
source: KIP-979; systemd.unit(5); measured on machines: the neighbour ends with it
ask: Read these commands on their machines: if they end any process but their own unit's, write a drop-in with an empty ExecStop= (systemctl edit).

B20 Dynamic settings that a KRaft broker refuses
means: A running broker changes a number of threads at most to half or double. A ZooKeeper broker reads dynamic settings before its threads exist; a KRaft broker starts with its file's number, refuses the dynamic one, and with it **every** dynamic setting of that entity: retention, too (measured).
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write the number in force into the file of each broker that the text names. No restart is needed.
do: Or delete the dynamic one: `kafka-configs.sh --bootstrap-server $B --entity-type brokers --entity-name N --alter --delete-config <key>` (default of all: `--entity-default`).
never: Raise the number in steps while the migration runs: the next start begins with the file's again.
source: measured: `Cluster default configs could not be applied`, retention was Kafka's default; DynamicThreadPool, LogCleaner, BrokerDynamicConfigHandler

B21 A client library that cannot log in
means: The probe, the audit, expansions of `__consumer_offsets` and your audited clients use librdkafka, and the wheel of confluent-kafka has it without Kerberos. The rest of kmigrate uses `gssapi`. *block*: the cluster file has an `audit`. *warn*: none.
meanwhile: Yes, as safe as before. Nothing was changed.
do: On every worker and the triggerer: Confluent's package `librdkafka-dev` and `libsasl2-modules-gssapi-mit`, then `pip install --no-binary confluent-kafka --force-reinstall confluent-kafka`.
do: Or give kmigrate another login than Kerberos, or migrate without `audit` in the cluster file: no records are evidence then.
never: Begin the first roll, and find out at the first gate.
source: measured: No provider for SASL mechanism GSSAPI, confluent-kafka 2.16.1; librdkafka, INTRODUCTION.md

B22 Controllers with an address of their own machine only
means: `host` of a controller is localhost or 127.x, there or as its own machine resolves it, and other nodes are on other machines. It would listen where no other machine reaches it, or each node would look for it on itself: the quorum has no leader, and no broker registers.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write into the cluster file, under `quorum`, the name by which every node reaches the controller. On each node: `getent hosts NAME` must not give 127.0.1.1 (Debian's /etc/hosts has the machine's own name there): write its address in place of it, or remove the line.
never: Format controllers with it: their addresses are in every file.
source: KIP-595, controller.quorum.voters; getaddrinfo(3); Kafka's SocketServer binds the first address
ask: On the controller's machine: `getent ahosts NAME`. Its first line must be an address that the other machines reach. An agent before 1.10 is not asked.

B23 Little room for the metadata log
means: A broker in KRaft mode keeps the metadata log and its snapshots in `metadata.log.dir`, by default the first of `log.dirs`, and halts if that disk is full. *block*: below 256 MiB. *warn*: below 2 GiB, which the log takes with Kafka's defaults.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Make room: a larger disk, shorter retention, or replicas moved away. Or write `metadata.log.dir` of another disk into the broker's file.
never: Delete files in a log directory by hand.
source: KIP-630; KIP-827; metadata.log.segment.bytes, metadata.max.retention.bytes
ask: On each broker that the text names: df -h DIRECTORY shows more than 2 GiB, with `metadata.log.dir` of its file, else the first of `log.dirs`.

B24 Certificates or tokens that end before the migration does
means: The text says when. *block*: a certificate, or what kmigrate logs in with, ends before the shortest soak is over: afterwards clients, followers and kmigrate are refused, in the middle of the migration. *warn*: within two weeks, the usual soak.
meanwhile: Yes, until that time.
do: Renew them first, and restart the broker or ZooKeeper's server: it loads its store when it starts. An authority in between may end first: renew that. kmigrate's own: exchange the file, or the token in the connection.
do: The certificates of the controllers' listener, too: `openssl s_client -connect HOST:PORT </dev/null | openssl x509 -noout -enddate`.
never: Switch verification off to gain time.
source: RFC 5280; read from the TLS handshake of each broker and of each server of ZooKeeper
ask: Read the end of each broker's certificate: openssl s_client -connect HOST:PORT </dev/null | openssl x509 -noout -enddate.

B25 Partitions on disk that are not those of the metadata
means: `partition.metadata` has the topic's id. *block* (measured): another id: the broker does not serve the partition; an unreadable file: it does not start again; a directory of no partition without id: in migration mode it refuses the controllers' first request. *warn*: no id yet; directories of no partition: Kafka keeps them as `*-stray`.
meanwhile: Yes, until that broker restarts. Nothing was changed.
do: *another id*, *cannot read*: stop the broker, move the directory out of `log.dirs`, start it, if its replicas are in sync elsewhere.
do: `kafka-topics.sh --bootstrap-server $B --describe --topic T` has them, and the right id. The topic was created again meanwhile, or the directory was copied.
do: *no id*: restart that broker; it writes one.
do: *of no partition*, `*-stray`: the same move, if the replicas are in sync elsewhere. `*-delete`: wait a minute.
do: *not read*: see what it is. An older agent: `kmigrate node install CLUSTER.yaml`.
never: Write an id by hand: two topics would mix.
source: KIP-516; LogManager.findStrayReplicas, isStrayKraftReplica (3.7 to 3.9)
ask: Compare each TOPIC-N/partition.metadata with kafka-topics.sh --describe. An older agent: kmigrate node install CLUSTER.yaml.

B26 Limits of connections that lock nodes out
means: Controllers have the brokers' limits (`max.connections` and its like), from the file or dynamically, and every node is their client. Kafka counts addresses before anybody logs in. *block*: a node would be refused: no leader, no registration, or a fenced broker. *warn*: connections are made so slowly that brokers are fenced after each election.
meanwhile: Yes, as safe as before. Nothing was changed.
do: From the file: other values for controllers in the cluster file, under `quorum.properties`: `max.connections.per.ip: 2147483647`, `max.connections.per.ip.overrides: ""`, `max.connections: 2147483647`, `max.connection.creation.rate: 2147483647`.
do: Dynamic, which wins over every file: add the addresses of all brokers, controllers and of kmigrate to the overrides: `kafka-configs.sh --bootstrap-server $B --alter --entity-type brokers --entity-default --add-config 'max.connections.per.ip.overrides=[10.0.0.6:1000,10.0.0.7:1000]'`. Or raise the limit.
never: Format controllers before you check: a quorum without a leader answers no client.
source: measured with 3.9.2: above `max.connections` a controller answers no client and does not stop when it is asked to; a dynamic `max.connections.per.ip` resets at once; KIP-402, KIP-612
ask: `getent ahosts NAME` for each name: the overrides must have the address from which that machine connects.

C Properties files
about: properties files of nodes
when: preflight, and before a file is written
intro: What a node's file must or must not hold. Values that may be secrets are never shown.

C04 A line or key is missing, wrong or must not be there
means: A node of this stage does not start, register or work with it, or changes its id.
meanwhile: Yes: nothing was changed. A node's own file: until that node restarts for any reason.
do: The text names the cluster file: correct it there. A broker: correct the original on the node, with all lines of the text together, and run `backup` again while no broker has moved. A controller: correct `quorum.properties` in the cluster file.
do: A `\u` needs four digits. An id without lines in the text: `broker.id` as in the node's `meta.properties`; above `reserved.broker.max.id` (1000) together with `broker.id.generation.enable=false`: one without the other does not start. An id needs no restart.
do: `metadata.max.idle.interval.ms`: remove it until the finalization. With it, a dual-write that works looks like one that has ended.
do: A chroot: one in every file and in the connection. A version: B1a.
never: Edit a file that kmigrate rendered. Invent an id. Remove `zookeeper.metadata.migration.enable` by hand: that finalizes. Leave the authorizer out.

C10 A reference that nothing resolves
means: The controller would take the reference itself for the value: for a password, a path, a login.
meanwhile: Yes: no controller got that file.
do: Write what the text says as `config.providers`, and `config.providers.<name>.class`, under `quorum.properties` in the cluster file, which goes before the brokers' files. In those files it needs a restart (B15).
do: The files that references name must be on the controllers' machines, readable for their user; environment variables must be set in their units.
never: Write the secret itself into the cluster file.
ask: On each controller's machine: systemctl show -p Environment -p EnvironmentFiles of its unit, and its start script, set every variable in the text.

C11 A key store, keytab or file of secrets that a node cannot read
means: A file names a key store, trust store or keytab that Kafka's user cannot read. A ZooKeeper broker may have got another one dynamically; a KRaft node opens the one in the file first, and does not start.
meanwhile: Yes: nothing was changed. A broker: until it starts in KRaft mode.
do: Put the file that is in use at the place in the text, readable for Kafka's user, or write its place into the file. On every controller's machine, too: controllers inherit the first broker's file.
do: `sudo -u kafka keytool -list -v -keystore STORE | grep until`: its certificate must outlast the migration. PEM: `openssl x509 -enddate -noout -in STORE`.
do: A keytab: `sudo -u kafka klist -kt KEYTAB` lists its principals.
never: Make a key store or keytab readable for every user.
source: KAFKA-17431; DefaultSslEngineFactory
ask: On each controller's machine: sudo -u kafka keytool -list -v -keystore STORE opens each store, and its certificate outlasts the migration. Any other file: sudo -u kafka test -r FILE ends with 0.

W Preflight warns
about: preflight: what never blocks
when: before anything is changed
intro: These never stop the migration. Each is better known before it than during it.

W1 Partitions without a replica to spare
means: While any of their brokers restarts, twice each, acks=all is refused; with a single replica nothing can be read or written.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Add replicas (`kafka-reassign-partitions.sh`), or warn the owners and accept the pauses.
do: A single replica: Spark jobs on it may end silently. After the copy see G13.
never: Lower `min.insync.replicas` for good because of it.
source: safe-to-stop predicate

W3 Few or an even number of controllers
means: The loss or restart of one may stop all metadata changes.
meanwhile: Yes. Nothing was changed.
do: Plan three or five controllers before the first one is started.
never: Change the voters in the middle of a migration.
source: KIP-595

W7 A node may be killed while it stops
means: A broker in migration mode may take 300 s to stop. Killed before, it recovers its logs at the next start, for minutes or hours.
meanwhile: Yes, as safe as before. Nothing was changed.
do: `kmigrate node install CLUSTER.yaml --drop-in write`, or by hand on each node: `systemctl edit kafka`, write `[Service]` and `TimeoutStopSec=10min`, then `systemctl daemon-reload`. No restart is needed.
do: A unit kills Kafka by its `KillSignal=` or by `kill -9` in its `ExecStop=`: write `KillSignal=SIGTERM`, or an empty `ExecStop=`, in the same way. The text names a command that kills after a time, 10 s for `docker stop`: give it 600 s, `docker stop -t 600 NAME`. Backend `commands`: raise what kills the process: supervisord's `stopwaitsecs`, the `--time` of `docker stop`, `terminationGracePeriodSeconds` of a pod, the `kill -9` of an own script.
do: `hosts.stop_timeout` (cluster file) and `stop_timeout` (`node.json`) must be above 300 s, and below the unit's time.
never: Kill a broker because it stops slowly.
source: measured: a stop without controller took 300.8 s; systemd kills after 90 s
ask: Find what kills a node that does not stop, and raise it above 330 s. systemd: systemctl show -p TimeoutStopUSec kafka (TimeoutStopSec). supervisord: stopwaitsecs. A container: --time of `docker stop`. A pod: terminationGracePeriodSeconds. An own script: its kill -9.

W8 Clocks differ, or are unknown
means: Tokens, certificates, retention and the order of evidence depend on the clock.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Check `chronyc tracking` or `timedatectl` on every node, on ZooKeeper and on Airflow's workers.
never: Step a clock during a roll.
source: reliability: evidence is ordered by time
ask: Compare date -u on the nodes and on this machine, or check that `chronyc tracking` is well on all of them.

W9 Another tool acts on the cluster or its files
means: A tool that moves replicas, changes settings or writes nodes' files during a roll undoes what was checked: a restart may then leave the broker in its old mode.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Find the owner.
do: Pause it until the migration is finalized: Cruise Control's self-healing and executor, Confluent Server's balancer (`confluent.balancer.enable`), CMAK, scripts, configuration management with its agents and timers.
do: Afterwards give configuration management the new files.
never: Let two tools change the cluster at once, or trust a check mode that may restart the service.
source: peers: interlocks against other actors
ask: Ask who runs Cruise Control, CMAK or scripts against this cluster, and have them paused.

W10 meta.properties of version 1
means: A broker in ZooKeeper mode does not start with it, which shows only at the end of a rollback.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Nothing: a rollback rewrites the file while the broker is down.
never: Add brokers that `kafka-storage` has formatted before the finalization.
source: KAFKA-20762; measured

W13 Dynamic settings and passwords
means: The migration copies them, but controllers do not follow every one of them. KRaft keeps dynamic passwords unencrypted in its metadata log, on every controller's disk.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Write what a controller needs into the brokers' files, or under `quorum.properties`.
do: Passwords: move them into the files first, or protect the controllers' disks and their backups.
never: Change them while the migration runs. Share a metadata snapshot.
source: KIP-866; ControllerServer.scala; Kafka 3.9 notes on unclean.leader.election.enable

W14 Rules that may not say what was meant
means: Such a rule is copied, but may match other requests after the migration, or none.
meanwhile: Yes, as safe as before. Nothing was changed.
do: `kafka-acls.sh --bootstrap-server $B --list`. Ask the owner of each; create it again if it does not match.
never: Delete rules that you do not understand.
source: cp-ansible#1805, strimzi#11612

W21 A chroot before the last server
means: ZooKeeper's client takes all behind the first slash for the path. Brokers use the first server only, and their znodes are under that odd path. Controllers get the same text.
meanwhile: Yes, as safe as before, as long as that one server runs.
do: The migration works with it. In the ZooKeeper connection write the first server into `host`, and all behind it, as it is, into `extra.chroot`.
do: After the migration ZooKeeper is gone, and the path with it.
never: Correct the text in the files: under the right path there is no cluster, and brokers would begin an empty one.
source: ZooKeeper programmer's guide: connection strings with a chroot

W22 Any client of ZooKeeper may write kmigrate's record
means: Who owns the cluster, what was approved, and the notes of the rolls, are below `/_kmigrate`. Without an identity kmigrate cannot protect them: any client that reaches ZooKeeper can take the cluster from a run, give it to one that was stopped, or write an approval. Kafka's own znodes are as open, unless brokers have an identity.
meanwhile: Yes, as safe as ZooKeeper was before.
do: Let only brokers, controllers and kmigrate reach ZooKeeper's port until the finalization.
do: Or give the ZooKeeper connection the brokers' identity (login, SASL or a TLS certificate): what kmigrate creates then belongs to it.
do: Approvals alone: set `approvers.signing_conn_id` in the cluster file. They are signed then, wherever they are stored.
do: `/_kmigrate` was made before the connection had an identity: as that user, in `zookeeper-shell.sh`, `setAcl -R /_kmigrate auth::cdrwa`. Until then no record of an approval is believed (H13).
never: Give kmigrate an identity of its own on a cluster whose brokers have one: it could not write their znodes.
source: ZooKeeper: CREATOR_ALL_ACL needs an authenticated client

W23 Kafka's unit needs ZooKeeper's unit
means: With `Requires=`, `BindsTo=`, `PartOf=` or `Requisite=` systemd stops Kafka when this machine's ZooKeeper is stopped, also once the cluster does not use it any more. Without ZooKeeper's unit Kafka does not start again.
meanwhile: Yes, until that ZooKeeper is stopped.
do: Before ZooKeeper is switched off: `systemctl edit --full kafka.service` on that machine: take ZooKeeper's unit out of these settings (`After=` and `Wants=` may stay), then `systemctl daemon-reload`. Kafka is not restarted.
do: Check: `systemctl show -p Requires -p BindsTo -p PartOf -p Requisite kafka.service`. What is left is a link in `kafka.service.requires/`: remove it.
never: Write an empty `Requires=` into a drop-in: systemd ignores it (measured). Stop ZooKeeper to see what happens.
source: systemd.unit(5); measured on machines: Kafka stops with ZooKeeper; an empty Requires= changes nothing

W24 Keys that no release of Kafka reads
means: No code of Kafka from 3.6 on reads these keys: a typing error, a key of an older release, or one of a plug-in. Controllers do not get them. Their values may be secrets and are not shown.
meanwhile: Yes, as safe as before. Nothing was changed.
do: A typing error: the broker has run with Kafka's default until now. Correct the key and restart the broker as a change of its own, or remove the key.
do: A key of an older release (`host.name`, `port`, `quota.producer.default`): remove it when you edit the file next. Default quotas are dynamic settings since Kafka 3.0.
do: A plug-in that controllers load too: write the key under `quorum.properties` in the cluster file.
never: Correct a key while the migration runs: the restart would bring another value into force.
source: ConfigDef of KafkaConfig, Kafka 3.6 to 4.1; core.node_files.kafka_keys

W25 Keys that end with Kafka 4
means: KRaft nodes keep these keys, and Kafka 3.9 reads them. Kafka 4 ignores them without a word: a default comes into force with that upgrade. A topic's settings are copied: a controller of 4.1.2 refuses every other change of a topic that still has such a one (measured).
meanwhile: Yes, and after the migration too, until the upgrade to Kafka 4.
do: Nothing for the migration. Before the upgrade replace each one: `delegation.token.master.key` by `delegation.token.secret.key`, `log.message.timestamp.difference.max.ms` by `log.message.timestamp.before.max.ms` and `log.message.timestamp.after.max.ms`.
do: A class: write its successor, which 3.9 has too: `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler`, without `secured`. A node of Kafka 4 does not start with the old one.
do: A topic's setting: `kafka-configs.sh --bootstrap-server $B --alter --entity-type topics --entity-name orders --delete-config message.format.version`. Old records stay readable: brokers since 3.0 write the new format only.
do: `log.message.format.version`, `offsets.commit.required.acks`, `auto.include.jmx.reporter` and ids that are generated have no successor: remove them.
never: Replace them while the migration runs.
source: ConfigDef of KafkaConfig, Kafka 3.9 and 4.1; KIP-896, KIP-724

W28 A soak of almost no time, or a time far longer than usual
means: `policy.min_soak` is how long the cluster must be healthy in dual-write before the approval. After the finalization there is no rollback, so what shows itself only later is found too late. A time of more than 300 times the usual one is most likely meant in milliseconds: a broker that does not start would be noticed days later.
meanwhile: Yes. Nothing was changed.
do: Write `min_soak: 24h` into `policy`, or longer: one whole cycle of the cluster's load.
do: Write a time with its unit: `start_timeout: 10m`, `stop_timeout: 330s`, `sample_interval: 200ms`.
never: Shorten it because the window of a change ends: the run waits in dual-write, and a rollback stays possible.
source: kmigrate's own default; KIP-866

W29 Brokers that do not move their leaders before they stop
means: With `controlled.shutdown.enable=false` a stop is like a crash: each partition that the broker leads is without leader until its session has ended (18 s in ZooKeeper mode, 9 s in KRaft mode), at each of two restarts.
meanwhile: Yes, as safe as before. Nothing was changed.
do: Take the key out of every broker's file, and restart the brokers one by one, as a change of its own.
never: Take it out during the roll only: a running broker stops as it was started.
source: KafkaServer.controlledShutdown, BrokerServer.beginShutdown; measured: kill -9 stalls producers for 16 s and 9 s

W30 Keytabs that every user of a machine may read
means: A keytab is a password: with it, any user of that machine is a broker, for ZooKeeper and for the controllers.
meanwhile: Yes, as safe as before. Nothing was changed.
do: `chown kafka: KEYTAB && chmod 600 KEYTAB` on that machine. If others may have copied it: a new key in the KDC, and a restart of that broker, as a change of its own.
never: Make it unreadable for Kafka's user.
source: MIT Kerberos, keytab; JDK, Krb5LoginModule

F the cluster file
about: the cluster file
when: when DAGs are read
intro: A broken file is an import error in Airflow, with file, line and fix; its DAG disappears until the file is fixed. Check it with `kmigrate check <file or folder>`. The cluster is not affected. A run under way fails at its next task and is cleared afterwards; other clusters' DAGs are not touched.

F00 The cluster file cannot be read
means: There is no such file, no right to read it, or it is no UTF-8 or no YAML.
meanwhile: Yes.
do: Not YAML: fix the named line or the one above it, on every machine.
do: Check the path (`airflow config get-value kmigrate clusters_folder`) and its rights on every worker, the triggerer and the DAG processor.
never: Delete it while a run is under way: its tasks load it.

F04 A key of the cluster file is unknown, missing, wrong or there twice
means: kmigrate uses no part of a file with such a key: a setting with a typo would silently not apply. Two keys or nodes may not claim one name, id, address or file. Of two files for one cluster neither is used.
meanwhile: Yes: nothing was run.
do: Change the key as the text says; `cluster.schema.json` says where each key belongs. There twice: remove or rename the copy.
do: Not in this release: remove it. A key of the old driver `command` (`start`, `stop`, `status`, `read`, `write`, `format`, `wipe`, `kill_after`): the text has the section to write instead. Install `kmigrate-node` on each machine.
do: Check the file: `kmigrate check CLUSTER.yaml`.
never: Change `cluster_id` to make it fit: it protects against the wrong cluster. Copy another node's path. Write `true` as a command: kmigrate would take it for success.

F06 A secret in the cluster file
means: A key that holds a secret has its value written out. Cluster files are read by many and logged.
meanwhile: The cluster is; the secret may have been read.
do: Write a reference that Kafka resolves on the host: `${file:/path:key}`. Of a login only the secret options: `... username="ctl" password="${file:/path:key}";`.
do: Change the secret.
never: Put it into a comment.

F08 Software that the file needs is not installed
means: The audits need the Spark provider, and where they run Java and Spark's Kafka jars; a notifier needs its class. The audits would fail, and with them the migration; no message would be sent.
meanwhile: Yes.
do: A notifier: correct its import path, or install its provider on scheduler, workers and triggerer.
do: Audits: `pip install 'airflow-provider-kmigrate[spark]'` on scheduler and workers, or take the section out.
do: Java: install a Java 17 runtime on the machine that runs the audit, or set `JAVA_HOME`.
do: Jars: `python -m airflow_provider_kmigrate.audit.connector` fetches them with Maven (Debian, Ubuntu: `apt-get install maven`) and prints their paths; or name your own.
never: Install the full `pyspark` beside Airflow: it and the thin client overwrite each other. Mix versions of connector and Spark.
causes: JARS_MISSING, JAVA_MISSING

F09 A name or argument that does not exist
means: A task or command names a broker, controller, group, wave, instance, Spark job or value that the cluster file, ZooKeeper or Kafka does not have. The run would do nothing and look finished.
meanwhile: Yes: nothing was changed. What was meant is as it was.
do: Correct the argument of the task, the template that fills it, the command or the cluster file. The text lists what exists.
do: A group: `kmigrate groups scan` lists them. A job: add it to `spark_jobs`.
do: Clear the task.
never: Mark the task as success, or repeat a command with `--force`.

N Airflow connections
about: Airflow connections
when: when a task begins
intro: Addresses and secrets live in Airflow connections. They are read strictly, and everything that is wrong is listed at once; nothing was done. *Test* under *Admin, Connections* tries them. A run under way fails at its next task and is cleared afterwards.

N03 A connection is missing or wrong
means: Addresses and secrets of a cluster are in Airflow connections, or without Airflow in a JSON file of them. There is none, or a field is unknown, missing, contradicts another, or is something that kmigrate's own client cannot use. Secrets are never shown.
meanwhile: Yes.
do: Change the field as the text says, or complete and run its `airflow connections add` command. User and password belong in *Login* and *Password*.
do: Write each thing in one place; `zookeeper.connect` of a broker has the right chroot.
do: TLS: PEM files, or a PKCS#12 key store. SASL: with what the text says is missing. Another type: name or create a connection of the type in the text.
do: Without Airflow: `airflow connections export --file-format json FILE`. It holds secrets: remove it afterwards.
never: Point the cluster file at another cluster's connection. Disable certificate checks, or fall back to PLAINTEXT. Put a secret into an extra of your own naming. Change the type of a connection in use. Leave the file where others can read it.

Y the probe
about: the probe: records of our own
when: during a migration
intro: Records that kmigrate itself sends and receives to check whether anything is lost. None of these codes concerns the cluster.

Y01 The probe cannot be used like this
means: The folder has no events of one.
meanwhile: Yes.
do: Name the folder of one run: the one that has `events` in it.
never: Delete the folder of one whose verdict is still needed.

Y05 The probe has ended
means: What it did not observe since then is missing: no broker restarts, because nothing shows whether records wait, and the gates of this run stay INCONCLUSIVE (L05, L14).
meanwhile: Yes; only the evidence is thinner. A rollback does not wait for it.
do: Airflow tries `probe` again by itself. It has ended (after a run that failed, too): clear the task `probe` alone. It goes on with the same run, and the roll continues within a minute.
do: Its log says why it ended. It was killed: the gate of the step in which it died may stay INCONCLUSIVE (its writers have no stop); later steps' gates are not affected.
do: It runs, and this worker does not see its files: all workers must have the folder `audit.result`.
do: Or continue without one: `probe: false` under `audit`. A roll continues within minutes; a task that has failed must be cleared. At a gate, if clients or logs are audited too (`events`, `topics`), clear its `audit` with *Downstream*.
never: Delete its folder before the last audit.

Y06 A setting that a migrating consumer cannot have
means: An application configured or subscribed its `MigratingConsumer` in a way in which no member of such a group can work.
meanwhile: Yes: it has not joined; the rest of the group has its partitions.
do: Change in the application what the text says, and start it again. The assignment strategy must be that of the ZooKeeper consumers; for Kafka 0.10.2 or 0.11 with round-robin, `roundrobin-0.10`.
do: A wildcard: one expression of plain letters, dots, bars, brackets and stars, or name the topics.
do: A second `subscribe`: close the consumer and create another one with all topics.
never: Try another strategy: the members would wait for each other.

Y09 No record of the probe arrives
means: Its task `probe` has no slot of a worker, or has failed; or it runs, and its files show nothing new here: the audits would have no evidence. Or an earlier release's probe still runs.
meanwhile: Yes; no broker was restarted because of it.
do: `probe` is queued, or held the only slot: the run needs a slot for it beside one for its steps, all the time. Raise the workers, or the limits that hold it (pool, `max_active_tasks`), then clear `probe` and `check_probe`.
do: `probe` has failed: its log says why. Clear it and `check_probe`.
do: It runs: every worker and Spark's driver must see the same folder `audit.result`.
do: A migration begun with an earlier release goes on with that release's probe. The text names its machine and its processes: end them there once the run is over, or before, and clear `probe`.
do: No slot to spare: `probe: false` under `audit`.
never: Skip the task, or delete its folder before the last audit.
""")
