//! Lookups of programs with another C library, and through services on unix sockets.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use stallscope::demo::{Action, RecordType, Rule};
use stallscope_tests::compiled::Compiled;
use stallscope_tests::{Program, Resolver, Values, assert_close, record_run, require_root, rows, sum};

const LATE: Duration = Duration::from_millis(150);

/// Starts `program` on the client, which asks the scripted server.
fn start(rig: &Resolver, program: &Path, arguments: &[&str]) -> Program {
    let role = rig.client.role(program).resolver(&rig.resolv_conf).args(arguments);
    Program::adopt(role.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

fn late_server() -> Resolver {
    let late = |suffix| Rule::new(suffix, Action::Answer { delay: LATE });
    Resolver::start(vec![late("test"), late("arpa")])
}

fn state(report: &Value, family: &str) -> Value {
    let probes = report["coverage"]["probes"].as_array().unwrap();
    probes.iter().find(|row| row["family"] == family).cloned().unwrap_or_default()
}

/// Records a lookup; its rows have this name and `api`, and the time that it took.
fn check_lookup(rig: &Resolver, program: &Path, [how, what]: [&str; 2], name: &str, api: &str) -> Value {
    let (values, trace) = record_run(&mut start(rig, program, &[how, what]));
    let report = trace.report();
    let found = rows(&report, "dns", &[("name", json!(name))]);
    assert!(!found.is_empty(), "{how}: {:#}", report["dns"]);
    for row in &found {
        assert_eq!((&row["api"], &row["server"]), (&json!(api), &json!(rig.server_name())), "{how}");
        assert_eq!((&row["answered"], &row["transport"]), (&row["attempts"], &json!("udp")), "{how}: {row}");
    }
    let all = sum(&rows(&report, "dns", &[]), "stalled_ns");
    assert_close(how, all, values.measured());
    assert_eq!(all, sum(&rows(&report, "causes", &[("cause", json!("dns.resolve"))]), "stalled_ns"));
    report
}

/// What each function asks for, the name that goes over the wire, and the function that is named.
const LOOKUPS: [([&str; 2], &str, &str); 3] = [
    (["getaddrinfo", "a.test"], "a.test", "getaddrinfo"),
    // Which in musl is a jump to the other one, as if that had been called.
    (["gethostbyname", "b.test"], "b.test", "gethostbyname2"),
    (["getnameinfo", "10.9.8.7"], "7.8.9.10.in-addr.arpa", "getnameinfo"),
];

#[test]
fn resolver_functions_of_musl_are_named() {
    let rig = late_server();
    let programs = Compiled::new();
    let program = programs.build("musl-gcc", "names.c", "names", &[]);
    for (lookup, name, api) in LOOKUPS {
        let report = check_lookup(&rig, &program, lookup, name, api);
        assert_eq!(state(&report, "dns")["state"], "on", "{:#}", report["coverage"]["probes"]);
    }
}

#[test]
fn a_static_program_with_symbols_is_probed_itself() {
    let rig = late_server();
    let programs = Compiled::new();
    let program = programs.build("musl-gcc", "names.c", "names", &["-static"]);
    for (lookup, name, api) in LOOKUPS {
        check_lookup(&rig, &program, lookup, name, api);
    }
}

#[test]
fn a_stripped_static_program_keeps_its_lookups_and_lacks_the_functions_alone() {
    let rig = late_server();
    let programs = Compiled::new();
    let program = programs.build("musl-gcc", "names.c", "names", &["-static", "-s"]);
    let report = check_lookup(&rig, &program, LOOKUPS[0].0, "a.test", "");
    let dns = state(&report, "dns");
    assert_eq!(dns["state"], "partial", "{dns}");
    assert!(dns["reason"].as_str().unwrap().contains("no resolver function is probed"), "{dns}");
    assert_eq!(rig.counts("a.test", RecordType::A).0, 1);
}

/// A stand-in for a name service: a socket bound at its path, in a mount namespace of the rig, that hangs up late.
/// Whoever asks is a real `getaddrinfo`, through a module of the name service switch that is a stand-in too.
fn ask_service(path: &'static str) -> (Values, Value) {
    require_root();
    let programs = Compiled::new();
    let program = programs.build("cc", "names.c", "names", &[]);
    programs.build("cc", "nss_fake.c", "libnss_fake.so.2", &["-shared", "-fPIC"]);
    let switch = programs.folder().join("nsswitch.conf");
    std::fs::write(&switch, "passwd: files\ngroup: files\nhosts: fake\n").unwrap();
    let mut command = Command::new(program);
    command.args(["getaddrinfo", "node01.cluster"]);
    command.env("LD_LIBRARY_PATH", programs.folder()).env("NSS_FAKE_SOCKET", path);
    // The namespace is the thread's, and what it starts inherits it.
    let started = std::thread::spawn(move || {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some(&switch), "/etc/nsswitch.conf", none, MsFlags::MS_BIND, none).unwrap();
        mount(Some("none"), "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        std::fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        (Program::start_command(&mut command), listener)
    });
    let (mut program, listener) = started.join().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::sleep(LATE);
            drop(stream);
        }
    });
    let (values, trace) = record_run(&mut program);
    (values, trace.report())
}

#[test]
fn waits_for_name_services_on_unix_sockets_have_the_service_s_path() {
    // systemd-resolved by varlink and by D-Bus, sssd.
    for path in
        ["/run/systemd/resolve/io.systemd.Resolve", "/run/dbus/system_bus_socket", "/run/sss/pipes/nss"]
    {
        let (values, report) = ask_service(path);
        let found = rows(&report, "dns", &[("transport", json!("unix"))]);
        assert_eq!(found.len(), 1, "{path}: {:#}", report["dns"]);
        let row = found[0];
        assert_eq!((&row["server"], &row["api"]), (&json!(path), &json!("getaddrinfo")), "{row}");
        assert_eq!(row["name"], "node01.cluster", "{row}");
        assert_close(path, sum(&found, "stalled_ns"), values.measured());
    }
}
