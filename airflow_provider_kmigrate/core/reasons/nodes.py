"""Entries of single nodes and of ZooKeeper: restarts, machines, files, and what could not be read."""

from __future__ import annotations

from airflow_provider_kmigrate.core.reasons.entry import read

AREAS, ENTRIES = read("""
I Identity
about: identity: is it the cluster that was named
when: before every act

I01 Another cluster
means: What answered belongs to another cluster id than the one in the cluster file. Continuing would change another cluster.
meanwhile: Yes, both clusters. Nothing was done.
do: Compare: `zookeeper-shell.sh $ZK get /cluster/id`, `kafka-cluster.sh cluster-id --bootstrap-server $B`, `cluster.id` in `meta.properties`.
do: Correct the connection, the host or the path that is wrong (`log_dir` for a controller). Clear the task.
never: Change `cluster_id` in the cluster file before you know which is right.

M The nodes' machines
about: the nodes' machines
when: when a node is formatted, started or stopped

M01 A file, directory or port of another node
means: The cluster file gives a node a file, directory, port or process that belongs to another one or is unknown. The wrong node would be stopped, its data moved away, or a node not start. kmigrate formats only empty directories and moves away only its own.
meanwhile: Yes: nothing was formatted, written or moved.
do: Check what is in it. Correct `host`, `properties` or `log_dir` of this node in the cluster file.
do: A port: choose one for the controller (`port`) that no listener of that machine's brokers has. JMX or a Java agent: another port in the controller's unit.
do: A controller needs a `log_dir` and a file that nothing else uses, neither inside the other. Save what is needed, then empty the directory, or move an unused file of the package away. Clear the task.
do: A process: correct the role's unit in `/etc/kmigrate/node.json`.
never: Stop a process before you know whose it is. Use `kafka-storage.sh format --ignore-formatted`. Change `broker.id` in the file to match. Move away the file of a running process.
source: reliability: every act is identified; measured: a rollback moved a running broker's data
ask: See whether the controller has a network of its own (a pod, or a container with published ports); else choose another port.

M03 The agent on a node's machine refuses
means: `kmigrate-node` is missing or has another version, or `/etc/kmigrate/node.json` does not fit the machine. It follows no link but those that `node install` found, and writes only in directories of root or of Kafka's user.
meanwhile: Yes: nothing was stopped or written.
do: The text names what the agent found. Correct `/etc/kmigrate/node.json` on that machine: real paths, the unit, and every directory of `log.dirs`.
do: It is missing, of another version, without its line of sudoers, or a link leads elsewhere since (an upgrade of Kafka): `kmigrate node install CLUSTER.yaml`.
do: A unit whose process could not write (`ProtectSystem=strict`, `PrivateTmp=yes`): the directory was formatted from outside of it. `systemctl edit` that unit: below `[Service]` the line of the text.
do: `kmigrate node check CLUSTER.yaml` tries every node. Clear the task.
never: Let the agent act in other directories, or allow it more than `serve` by sudo.

M06 The SSH connection to a node's machine is refused
means: The machine's host key is unknown or changed, or it does not accept the login of the Airflow connection. Behind a wrong host key another machine would get files with their secrets.
meanwhile: Yes: nothing was stopped or written.
do: Host key: `kmigrate node known-hosts CLUSTER.yaml --host HOST --port PORT` shows its fingerprint. Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the machine's console. If equal, agree, as Airflow's user on each worker and the triggerer.
do: Login: correct login, key and password of the connection, and `authorized_keys` of that user on the machine.
do: `kmigrate node check CLUSTER.yaml` tries every node. Clear the task.
never: Set `no_host_key_check`. Take a new host key without comparing it.

M07 The cluster file declares a node gone
means: A step needs a node whose machine the cluster file declares dead for good (`driver: gone`). Only a rollback continues without it.
meanwhile: Yes. Nothing was changed.
do: The machine is back or replaced: remove `driver: gone` from the node's entry, and start a new run.
do: It is dead: roll back ([section 12](#12-a-machine-is-dead-for-good)).
never: Declare a node gone whose machine or disk may start again: two such controllers form a quorum, which takes the cluster over.

M08 A unit ends again and again
means: The service manager starts this node's unit, it ends, and is started again. Nothing runs as this node, and kmigrate cannot give it a file or a directory meanwhile. Before a migration it is most often the unit of a package, enabled on a controller's machine that has no file yet.
meanwhile: Yes: nothing was stopped or written. With a broker down, as safe as your replication.
do: The text ends with the last lines of its log. More: `journalctl -u kafka -n 100` on that machine.
do: A controller before the migration: `systemctl disable --now kafka`. kmigrate writes its file, formats its directory, starts it and enables it.
do: A broker, or a controller with its file: repair what the log names. `systemctl reset-failed kafka`, then start it.
do: Another unit than this node's: correct `node.json` on that machine. Clear the task.
never: Format a directory by hand, or write a file, only so that the unit stays up.
source: systemd.service, Restart=

M09 What answers on a node's machine is no kmigrate-node
means: The program behind the node's connection said something that `kmigrate-node` never says: another form, a number beyond any, or more than 8 MiB. It is another program (a login's banner, a proxy), a damaged agent, or a machine in other hands. Nothing of the answer is used.
meanwhile: Yes: nothing is decided by such an answer. A restart that has begun continues on its machine.
do: Ask the agent by hand, as Airflow's user, on the worker, as U04 says. Its answer is one line: no banner and no shell's profile may print before it.
do: Put the agent there again: `kmigrate node install CLUSTER.yaml`. Then `node check` tries every node.
do: It stays so: treat the machine as one that an attacker controls, until its administrator knows why.
never: Continue by hand with what the machine says of itself.

O Originals
about: originals in the backup
when: before a file is written
intro: Every later file of a node, and the rollback, is rendered from its original in the backup, `<folder>/backup/<cluster>_<cluster id>/`.

O01 An original is missing or was altered
means: Later stages of a node's file, and the rollback, are rendered from its original. The original is missing in the backup, was changed after it was saved, or is not an original.
meanwhile: Yes; the node was not stopped. Without originals there is no rollback.
do: Put `[kmigrate] folder` on storage that all workers and the triggerer share. Copy it from the worker that ran `backup`. Clear the task.
do: Lost, and no broker has moved: clear `backup`.
do: Altered: restore it from your own backup or the node's replaced files ([section 9](#9-where-the-evidence-is)); the SHA-256 is in `manifest.json`.
do: Lost, and a broker has moved: fetch the broker's replaced files ([section 9](#9-where-the-evidence-is)) and store the ZooKeeper-mode one: `kmigrate originals <folder>/backup/<cluster>_<cluster id> N FILE --lost --metadata-version V`, as Airflow's user. `V`: `kafka-features.sh --bootstrap-controller $C describe`. Refused: try the next one.
never: Back up files that kmigrate rendered, or write a new hash into `manifest.json`.

O03 A node's file was edited
means: The node's file is neither its original nor the one that kmigrate installed last. Its next start takes what the file says now; a restart by kmigrate would lose the changes (a password, a playbook's setting).
meanwhile: Yes, until that node starts again; a reboot is enough. A rollback continues, and keeps a broker's edited file ([section 9](#9-where-the-evidence-is)).
do: Ask who changed the keys in the text. Stop playbooks until the migration is over.
do: Not wanted: write the right file again. `kmigrate render` ([section 12](#12-a-machine-is-dead-for-good)) prints it for the node's stage.
do: Wanted, of a broker: as Airflow's user, `kmigrate node accept CLUSTER.yaml broker-N` shows the keys and stores them in the original.
do: Wanted, of a controller: write it as `quorum.properties` of the cluster file, too.
do: Clear the task.
never: Delete the backup, or edit a file in it: its hash would be wrong (O01).

O05 The folder of backups and journals cannot be used
means: A task or the triggerer cannot write or read `[kmigrate] folder` on its machine, or finds no journal of the owning run in it. Every act is recorded there first.
meanwhile: Yes; nothing was stopped or written. In `handover.transaction` no controller is active: hurry.
do: Put the folder on one storage that every worker and the triggerer share, with free space. Without one: `[kmigrate] store` ([an object store](deployments.md#an-object-store-instead-of-a-shared-folder)).
do: An object store: the text names the object or the setting. Restore what is missing from the bucket's versions or backup. A copy that is damaged may be deleted on that machine.
do: Give it to Airflow's user: `chown -R airflow <folder>` ([section 9](#9-where-the-evidence-is)).
do: Clear the task. A sensor continues by itself: a run that has just begun writes its first line soon.
never: Point `[kmigrate] folder` elsewhere in the middle of a migration (O01). Remove the sensor.

O06 A node's file is of another mode
means: The file would start the node in another mode, or as broker and controller at once. Most often configuration management has put an older file back.
meanwhile: Yes, until that node starts again; a reboot is enough. Then a broker is isolated from the cluster, or a controller finalizes the migration.
do: Do not restart the node. Stop what wrote the file: it often names the tool (Ansible, Puppet, Chef), also in its first lines.
do: A broker that runs in KRaft mode: clear `second_roll.broker_N` without *Downstream*; it writes the right file, and restarts nothing.
do: Otherwise write the node's right file: `kmigrate render` ([section 12](#12-a-machine-is-dead-for-good)) prints it. Before the migration it is the node's own one: in the backup (`broker-N.properties`) or among its replaced files ([section 9](#9-where-the-evidence-is)).
do: Broker and controller at once: such combined nodes cannot be migrated.
do: Clear the task. A soak begins again.
never: Restart or reboot the machine before its file is right.
source: measured: a soak, an approval and a watch succeeded, and the next reboot isolated a broker

O07 A node does not come back in its stage after a boot
means: After a power cut the brokers would come up, but no controller: the cluster has no controller until an administrator starts one. kmigrate enables the unit when it starts a controller, and disables it when a rollback stops it. A broker's unit is its administrator's.
meanwhile: Yes, until that machine reboots.
do: On that machine: `systemctl enable` with the unit that the text names. A unit without an `[Install]` section, or a masked one, cannot be enabled: correct it first.
do: The step continues by itself.
never: Finalize with it.
source: measured: a finalized cluster had no controller after a power cut

O08 A meta.properties that no rollback can rewrite
means: A broker's log directory has a meta.properties of a version other than 0 and 1. A rollback writes version 0, which ZooKeeper brokers need, and knows how to do that for version 1 only.
meanwhile: Yes: the broker runs. It could not be started in ZooKeeper mode.
do: Which Kafka formatted that directory? `cat meta.properties` in it. A newer release than the one that is being migrated must not touch it.
do: Restore the file of the release that runs: version 1 with `node.id` on a KRaft broker, version 0 with `broker.id` on a ZooKeeper broker, and the same `cluster.id`.
never: Reformat the directory: its records would be lost.
source: measured: a ZooKeeper broker exits with version 1

O09 Too little space for the files of a rollback
means: A rollback writes a broker's properties file, a copy of the former one and its meta.properties. On a full disk it would stop at that broker, between two modes.
meanwhile: Yes, until the rollback is needed.
do: Free space where the text says, or enlarge the disk.
do: The step continues by itself.
never: Delete files of a log directory by hand.

O10 An export of offsets is missing or was altered
means: The export alone has the offsets of groups that an expansion of `__consumer_offsets` has deleted. Both of its files must be as they were written, by the SHA-256 in their first line.
meanwhile: Yes: nothing was imported. The groups that moved must stay stopped.
do: Copy the intact file that the text names over the other one, as Airflow's user. Clear the task.
do: Missing: put `[kmigrate] folder` on storage that all workers share, or copy it from the worker that ran `moving_groups.export` (O05).
do: Both altered: restore one from your own backup of the folder.
never: Write a new SHA-256 into a file. Start the groups: they would read everything again, or skip records.

O11 A controller's unit starts at boot too early
means: Its directory is not formatted, so at each boot the unit fails, and at its maximum of starts it stays failed. Left over from an earlier migration, or enabled by the package. A run formats the directory, starts the controller and enables the unit itself.
meanwhile: Yes. Nothing but that unit fails.
do: On that machine: `systemctl disable --now` with the unit that the text names.
never: Format the directory by hand, or enable the unit again before a run has started the controller.

R The restart of a node
about: the restart of one node
when: rolls, controllers
intro: A broker's new file is written before it is stopped. So "stopped, with the new file" is a restart of kmigrate that was interrupted; it continues by itself.

R01 A broker is down or does not respond
means: It starts, it hangs, it is down or unreachable. No other broker may be stopped meanwhile, and the copy would not start.
meanwhile: With one broker down, as safe as your replication. Clients are served if every partition has a leader.
do: Process down? Find out why (its log, disk, `Out of memory` in the kernel's log), and start it. Process up? Read its log; check the network.
do: After an unclean stop it reads its logs for minutes (`Recovering`): wait.
do: It exits again and again: the last lines say why. Put the previous file ([section 9](#9-where-the-evidence-is)) back only if the new one is the cause.
do: With G07 in the text: a broker in migration mode waits for the dual-write. The task restarts that after 20 s.
do: The machine is dead for good: [section 12](#12-a-machine-is-dead-for-good).
never: Install the new file by hand. SIGKILL it while it recovers its logs. Take it out of the cluster file. Stop others to compare.
source: KRaftMigrationDriver, WAIT_FOR_BROKERS

R03 Not yet registered
means: Its registration or session in ZooKeeper, or its registration with the controllers, is not as it must be. Until then no other broker may be stopped.
meanwhile: With one broker down, as safe as your replication. Clients are served if every partition has a leader.
do: Wait: a ZooKeeper session ends within 18 s, unfencing takes up to a minute, with large logs longer.
do: Longer: search its log for `Unable to register` and `Recovering`, and compare versions (C04).
do: Check that it reaches every controller's port. Search the active controller's log for its id.
never: Delete its znode under `/brokers/ids`, or restart the others.

R05 Not yet back in every ISR
means: The broker still copies records from its leaders. Until it is in every ISR, no other broker may stop.
meanwhile: Yes.
do: Wait: with much traffic or large logs it takes minutes. `still catching up` in the task's log: it is only slow.
do: The number falls: good. It does not: look for a full disk, an offline log directory, and a throttle (B14).
do: With G07 beside it, or partitions without a leader: nothing. The task repairs both.
do: One leader for all that is left: kmigrate restarts that leader after 20 s. If it does not, the codes beside R05 say why (R01, S02, G28); fix that.
do: After ten minutes, and the leader's log has `alter-partition-channel-manager]: Error due to`: restart that leader with your own service command.
do: After a handover, `already at a newer partition epoch`: nothing. kmigrate raises the states after 8 s.
never: Restart the follower again: it changes nothing. Raise `policy.start_timeout` without looking.
source: measured

R11 A controller lost its directory
means: Brokers have moved already. A controller with an empty directory could be elected without the metadata.
meanwhile: Yes, while a majority of the others is up. There is no spare.
do: Mount or restore its directory, start it, clear the task.
do: The disk is lost for good: [section 12](#12-a-machine-is-dead-for-good), in daylight.
never: Format an empty directory for it while another voter lags or is down.

R12 It is unknown whether the migration is finalized
means: A controller does not have the flag, and no leader with the flag has written /migration since its election. One without it may have led, which finalizes.
meanwhile: Unknown. Brokers serve; without a leader nothing can be created or elected.
do: Start the controllers that are down with the files that they have, those with the flag first.
do: With a majority up: a leader with the flag that writes `/migration` proves that it is open. Clear the task.
do: Otherwise search the log of each controller without the flag, since its start, for `Completing the ZK migration`.
do: Found, or one without the flag leads: **finalized**. Restart the leader until one without the flag leads; clear `finalize`; see P02.
do: Found in none, logs complete: open. Fix the leader's way to ZooKeeper. Its full sync fails (G07): put the flags back (`kmigrate render` ([section 12](#12-a-machine-is-dead-for-good))), one by one, then clear `soak`.
do: A log is missing: unknown. Restart no controller.
never: Give the flag back without those logs: a finalized controller ignores it.

R13 A node starts with another file than kmigrate wrote
means: The unit names another file, or the file is another one than kmigrate installed just before the start: a container's entry point, Cloudera Manager, Ambari or configuration management makes it again. Each further try would be a restart in vain.
meanwhile: Yes: the broker runs in its former mode.
do: Its unit or process names another file: write that one as `properties` into the cluster file and run `kmigrate node install CLUSTER.yaml`, if nothing rewrites it. A controller's unit that starts the broker's file: `systemctl edit --full`, write the controller's own file into `ExecStart=`, then `systemctl daemon-reload`.
do: `--override` in `ExecStart=`: take the key out of the unit, and write it into the broker's file if it is not there.
do: Find what writes it: the unit's `ExecStartPre`, the image's entry point (`KAFKA_...` variables), the manager's agent.
do: Give the migration's keys to that tool (`kmigrate render` ([section 12](#12-a-machine-is-dead-for-good)) prints the file), or take the file away from it.
do: Clear the task.
never: Make the file read-only: the broker would not start.
source: measured on the simulated cluster: five restarts without effect
ask: Look at what the unit or image runs before Kafka (systemctl cat kafka; docker inspect): if it writes the file, give it the migration's keys, or take the file away from it.

R14 A node was killed while it stopped
means: It did not stop in order: a broker's leaders moved only once its session had ended, and it recovers its logs at its start, for seconds or hours. With acks=all nothing is lost.
meanwhile: As safe as your replication, until it is back in every ISR. No other node is stopped before that.
do: Result `timeout`: raise `TimeoutStopSec` of **every** node's unit now (W7), before the next one is stopped.
do: Wait: kmigrate has started it again. `Recovering` in its log: it reads its logs.
do: Result `oom-kill` or `signal`: find what killed it (`journalctl -k`, an administrator), and stop that.
do: Result `core-dump`: read the end of its log and its `hs_err` file.
never: SIGKILL it while it recovers its logs.
source: measured on machines: a broker that systemd killed in the middle of a roll

R15 A restart would start another release or another Java, or nodes run different releases
means: The software on the node's disk is not the one that runs: a package manager, or a link such as `/opt/kafka`, replaced it since the node's start. Or a node already runs another release than the rest. A restart would be an upgrade, too; Kafka 4 has no ZooKeeper mode. Another Java holds no rollback, another release does.
meanwhile: Yes, until that node starts again; a reboot is enough.
do: Stop what updates these machines until the migration is over: `apt-mark hold`, `dnf versionlock`, playbooks.
do: Another release on disk: install the one that runs.
do: Different releases run: install the rest's release on that node; restart it once no partition is under-replicated.
do: Another Java that you want: restart that node by hand, one at a time, once no partition is under-replicated.
do: Before a migration: one release and one Java everywhere, each node restarted, then preflight.
never: Restart nodes of another release by hand in the middle of a migration.
ask: On that machine, compare the release and the Java that run with those of the next start. Started by `commands`, or in a container: give node.json a command `software` (`node install --software`). What is not known holds no restart.
source: kmigrate-node: Kafka's jar and the Java that the process has open, and those that its class path and path lead to now

U Unread
about: what could not be read (unknown)
when: all the way
intro: Something did not answer; the text ends with the cause. Unknown never counts as healthy: a step that needs it waits, preflight blocks.

U01 ZooKeeper could not be read
means: ZooKeeper says who owns the cluster; without it kmigrate does nothing.
meanwhile: If ZooKeeper is down: KRaft-mode brokers serve as usual; in ZooKeeper mode nothing can be elected.
do: Bring the ensemble back to a quorum: `echo srvr | nc SERVER PORT` for each server of the ZooKeeper connection. kmigrate continues by itself.
do: From Airflow's machine: `zookeeper-shell.sh $ZK ls /`. Is kmigrate's user still right?
never: Stop a broker in a ZooKeeper mode meanwhile: it may never end. Restart more than one ZooKeeper server at a time.

U04 A node's host does not report what it runs
means: Its agent did not answer, or could not say whether the node runs or what its files are. Acting now could change another process or another cluster's node.
meanwhile: Yes; the node may run well. A restart that has begun continues: the node starts by itself.
do: Ask the agent by hand, as Airflow's user, on the worker: `echo '{"v":1,"id":1,"verb":"facts","role":"broker"}' | ssh HOST sudo -n /usr/local/sbin/kmigrate-node serve` (or what `connect` runs). The answer holds the properties file with its secrets. `process.state` must be `running` or `stopped`.
do: No connection: check the network, the key, known_hosts and `host`. One error of many nodes: begin with what they share.
do: Backend `commands` of `node.json`: `status` must end with 0 while the node runs, and with 3 only once its process is gone (`systemctl is-active`: earlier; use backend `systemd`).
do: The step continues by itself, or after its task is cleared.
never: Let `status` always end with 0 or 3. Restart the node by hand instead.

U05 Metadata, files or settings could not be read
means: Without them kmigrate cannot decide which broker may stop, whether both sides are the same, or whether the migration may begin.
meanwhile: kmigrate changes nothing. In `handover` no controller is active: hurry.
do: The text ends with the cause. Are the brokers up, does a controller answer, is ZooKeeper up (U01), does the agent print the file (`facts`, U04)?
do: Grant kmigrate's user DESCRIBE and DESCRIBE_CONFIGS on the cluster and topics, DESCRIBE on groups and transactional ids. Delegation tokens need a TLS or SASL listener.
do: Very many topics may take longer than the 60 s that are allowed.
do: A step continues by itself; clear `preflight`.
never: Restart a broker by hand, or delete `/controller`. Take what was not read for empty or equal.
source: architecture: unknown is not healthy

U08 A host name does not resolve
means: The machine that observes (a worker, the triggerer, or this terminal) knows no address for the name. Nothing is known about the node itself.
meanwhile: Yes; the node may run well. Nothing was changed.
do: Ask there, as Airflow's user: `getent hosts NAME`. Correct `host` in the cluster file if the name is wrong.
do: Or make the name known there (DNS, /etc/hosts), on every worker and on the triggerer.
do: A broker's own name for clients is `advertised.listeners` in its file; the text names the one that was tried.
never: Write an address into /etc/hosts of one worker alone: the next task may run on another.
source: getaddrinfo(3)

U09 A login could not be made
means: The machine that connects has no valid ticket or token, or one side does not accept the other's user or certificate. The text names the mechanism and what is missing.
meanwhile: Yes. A roll waits before its next act, and continues by itself after the cause is gone.
do: GSSAPI, as Airflow's user there: `KRB5_TRACE=/dev/stderr kinit -k -t KEYTAB PRINCIPAL`, then `kvno kafka/HOST` (`zookeeper/HOST`) with the name in the text. Realm or KDC: krb5.conf. Clocks: NTP. An old key: a new keytab.
do: A keytab that others may read: `chmod 600`, then a new key.
do: OAUTHBEARER: `curl -u CLIENT -d grant_type=client_credentials ENDPOINT` there. `invalid_client`: its secret. A certificate: `https.ca.location`. A fixed token that ended: a new one.
do: A user or password: as in the brokers' JAAS file (ZooKeeper: section `Client`). The other side's log says why.
do: TLS: `openssl s_client -connect HOST:PORT -CAfile CA` there.
do: If a task has failed, clear it.
never: Put a ticket cache or keytab where every user of the machine can read it. Fall back to PLAINTEXT.
source: RFC 4752; RFC 6749, 4.4 and 5.2; RFC 7628; MIT Kerberos, krb5_err.et

Z ZooKeeper's tree
about: ZooKeeper's tree
when: all the way

Z01 No readable Kafka cluster in that chroot
means: The chroot does not exist, or has no `/cluster/id` or /controller_epoch that Kafka wrote: it is the wrong one, or the tree is damaged. Controllers would create a wrong chroot silently. KRaft takes control by raising /controller_epoch.
meanwhile: Yes. If `/cluster/id` is damaged: do not restart a broker, it reads it at its start.
do: Write servers and chroot into the ZooKeeper connection as a broker's `zookeeper.connect` has them.
do: The chroot is right: compare `zookeeper-shell.sh $ZK get /cluster/id` with `cluster.id` in a broker's `meta.properties`, and read `get /controller_epoch` and `get /controller`. Find out what changed or removed it.
never: Create the chroot or the id: a controller would wait in an empty tree forever. Write the epoch by hand: it decides whose leader elections count.
source: ZkData.scala, createChrootIfNecessary; KafkaZkClient.scala

Z05 ZooKeeper has no server to spare
means: Too few servers of the ensemble answer that they serve. If one more fails, ZooKeeper loses its majority and stops. A rollback puts the whole cluster back on ZooKeeper, and until the finalization KRaft writes to it.
meanwhile: Yes, while a majority is up. One more failure stops the dual-write, and every broker in a ZooKeeper mode loses its controller.
do: `echo srvr | nc <server> 2181` for each server that the text names. Start it, or fix its disk, network and clock.
do: If it answers that `srvr` is not in its whitelist, add `4lw.commands.whitelist=srvr` to its file and restart it, one server at a time.
do: If it was replaced, correct the servers of the ZooKeeper connection and of the brokers.
never: Restart two servers of the ensemble at a time.
ask: Let every ZooKeeper server answer `srvr`, and name all of them in the ZooKeeper connection.

Z04 A write that is not allowed
means: kmigrate was about to write a znode that is not on its list, or without owning the cluster. Nothing was sent.
meanwhile: Yes. Nothing was changed.
do: Pause the DAG. Keep the log and report it: this is a defect of kmigrate.
never: Do that write by hand.
""")
