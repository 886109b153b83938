//! Every kind of topology file, and what is wrong in them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const FILE: &str = r#"
[[rack]]
name = "A"
hosts = ["node01", "node02"]
cidrs = ["10.0.1.0/24"]
gids  = ["fe80::/64"]
rail  = { mlx5_0 = 0, mlx5_1 = 1 }

[[rack]]
name = "B"
hosts = ["node03", "192.0.2.7"]
cidrs = ["10.0.0.0/16", "2001:db8:b::/48"]
"#;

fn name(rack: Option<&Rack>) -> &str {
    rack.map_or("-", |rack| &rack.name)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn finds_racks_by_host_and_by_address() {
    let topology = Topology::parse(FILE).unwrap();
    assert_eq!(name(topology.rack_of_host("node02")), "A");
    assert_eq!(name(topology.rack_of_host("node03.cluster.local")), "B");
    assert_eq!(name(topology.rack_of_host("node09")), "-");
    assert_eq!(name(topology.rack_of_address(address("192.0.2.7"))), "B");
    assert_eq!(name(topology.rack_of_address(address("2001:db8:b:1::9"))), "B");
    assert_eq!(name(topology.rack_of_address(address("2001:db8:c::9"))), "-");
    assert_eq!(topology.racks()[0].rail, BTreeMap::from([("mlx5_0".into(), 0), ("mlx5_1".into(), 1)]));
}

#[test]
fn the_longest_range_wins() {
    let topology = Topology::parse(FILE).unwrap();
    assert_eq!(name(topology.rack_of_address(address("10.0.1.9"))), "A");
    assert_eq!(name(topology.rack_of_address(address("10.0.2.9"))), "B");
    assert_eq!(name(topology.rack_of_address(address("10.1.2.9"))), "-");
}

#[test]
fn a_prefix_of_nothing_contains_everything_of_its_family() {
    let rack = |range: &str, text: &str| {
        let topology = Topology::parse(&format!("[[rack]]\nname = \"A\"\ncidrs = [\"{range}\"]\n")).unwrap();
        name(topology.rack_of_address(address(text))).to_owned()
    };
    assert_eq!([rack("0.0.0.0/0", "255.1.2.3"), rack("0.0.0.0/0", "::1")], ["A", "-"]);
    assert_eq!([rack("::/0", "2001:db8::1"), rack("::/0", "10.0.0.1")], ["A", "-"]);
}

#[test]
fn a_range_in_two_racks_is_an_error() {
    let text =
        "[[rack]]\nname=\"A\"\ncidrs=[\"10.0.1.0/24\"]\n[[rack]]\nname=\"B\"\ncidrs=[\"10.0.1.7/24\"]\n";
    assert_eq!(
        Topology::parse(text).unwrap_err().to_string(),
        "line 6, column 8: the range 10.0.1.7/24 is in rack `A` and in rack `B`"
    );
}

#[test]
fn reads_two_columns() {
    let topology = Topology::parse("# host rack\nnode01 A\n10.0.0.2\tB # by address\n\n").unwrap();
    assert_eq!(name(topology.rack_of_host("node01")), "A");
    assert_eq!(name(topology.rack_of_address(address("10.0.0.2"))), "B");
}

#[test]
fn an_empty_file_has_no_racks() {
    assert_eq!(Topology::parse("").unwrap().racks().len(), 0);
}

#[test]
fn errors_say_line_and_column() {
    let at = |text: &str| {
        let error = Topology::parse(text).unwrap_err();
        (error.line, error.column, error.message)
    };
    let bad = "[[rack]]\nname = \"A\"\ncidrs = [\"10.0.0.0/8\", \"10.0.0.0/33\"]\n";
    assert_eq!(at(bad), (3, 24, "the prefix of `10.0.0.0/33` is longer than the address".into()));
    let (line, column, message) = at("[[rack]]\nname = \"A\"\nhost = [\"x\"]\n");
    assert_eq!((line, column), (3, 1));
    assert!(message.contains("unknown field `host`"), "{message}");
    let twice = "[[rack]]\nname=\"A\"\nhosts=[\"x\"]\n[[rack]]\nname=\"B\"\nhosts=[\"x\"]\n";
    assert_eq!(at(twice), (6, 8, "host `x` is in rack `A` and in rack `B`".into()));
    assert_eq!(at("node01 A\n  node02 B C\n"), (2, 3, "expected `host rack`, found 3 words".into()));
}

const SLURM: &str = "# leaves and a spine
SwitchName=leaf1 Nodes=node[01-02] LinkSpeed=400
SwitchName=leaf2 \\
    Nodes=node[03-04],login
SwitchName=spine Switches=leaf[1-2]
NodeName=node[01-04] NodeAddr=10.0.1.[1-4] CPUs=8
NodeName=other NodeAddr=10.0.9.9
";

#[test]
fn the_hosts_of_a_leaf_switch_are_a_rack() {
    let topology = Topology::parse(SLURM).unwrap();
    let names: Vec<&str> = topology.racks().iter().map(|rack| rack.name.as_str()).collect();
    assert_eq!(names, ["leaf1", "leaf2"]);
    assert_eq!(name(topology.rack_of_host("node02.cluster")), "leaf1");
    assert_eq!(name(topology.rack_of_host("login")), "leaf2");
    assert_eq!(name(topology.rack_of_address(address("10.0.1.3"))), "leaf2");
    assert_eq!(topology.host_of_address(address("10.0.1.3")), Some("node03"));
    assert_eq!(name(topology.rack_of_address(address("10.0.9.9"))), "-");
    let blocks = Topology::parse("BlockName=b1 Nodes=n[1-2]\nBlockSizes=2\n").unwrap();
    assert_eq!(name(blocks.rack_of_host("n2")), "b1");
}

#[test]
fn errors_in_a_slurm_file_say_where() {
    let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
    assert_eq!(
        error("SwitchName=s1 Nodes=a\nSwitchName=s2 Nodes=b,a\n"),
        "line 2, column 1: host `a` is in rack `s1` and in rack `s2`"
    );
    assert!(error("SwitchName=s1 Nodes=n[0-999999999]\n").contains("more than 262144 hosts"));
    assert!(error("SwitchName=s1 Nodes=a\n  Frob=1\n").starts_with("line 2, column 3: expected SwitchName"));
    assert!(error("NodeName=a[1-2] NodeAddr=10.0.0.1\n").contains("2 names and 1 addresses"));
}

const NODES: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
  {"metadata": {"name": "node01", "labels": {"topology.kubernetes.io/rack": "A", "topology.kubernetes.io/zone": "z"}},
   "status": {"addresses": [{"type": "InternalIP", "address": "10.0.1.1"}, {"type": "Hostname", "address": "node01"}]}},
  {"metadata": {"name": "node02", "labels": {"cloud.example.com/topology-rack": "B"}},
   "spec": {"podCIDR": "10.244.2.0/24", "podCIDRs": ["10.244.2.0/24", "fd00:2::/64"]},
   "status": {"addresses": [{"type": "InternalIP", "address": "10.0.2.1"}]}},
  {"metadata": {"name": "node03", "labels": {"track": "C"}}}
]}"#;

#[test]
fn labels_of_kubernetes_nodes_name_their_racks() {
    let topology = Topology::parse(NODES).unwrap();
    assert_eq!(name(topology.rack_of_host("node01")), "A");
    assert_eq!(name(topology.rack_of_address(address("10.0.2.1"))), "B");
    assert_eq!(topology.host_of_address(address("10.0.2.1")), Some("node02"));
    assert_eq!(name(topology.rack_of_host("node03")), "-");
    // A pod is where its node is.
    assert_eq!(name(topology.rack_of_address(address("10.244.2.17"))), "B");
    assert_eq!(name(topology.rack_of_address(address("fd00:2::17"))), "B");
    assert_eq!(topology.host_of_address(address("10.244.2.17")), None);
    let bare = Topology::parse(r#"{"n1": {"rack": "A"}, "n2": {"rack": "B", "x": "y"}}"#).unwrap();
    assert_eq!((name(bare.rack_of_host("n1")), name(bare.rack_of_host("n2"))), ("A", "B"));
    let list = Topology::parse(r#"[{"metadata": {"name": "n1", "labels": {"rack": "A"}}}]"#).unwrap();
    assert_eq!(name(list.rack_of_host("n1")), "A");
}

#[test]
fn nodes_without_racks_or_with_two_are_errors() {
    let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
    assert!(error(r#"{"n1": {"zone": "A"}}"#).contains("none of 1 nodes has a label"));
    assert!(error(r#"{"n1": {"rack": "A", "b/rack": "B"}}"#).contains("two racks, `A` and `B`"));
    assert!(error("{\n \"n1\": {\"rack\": 7}}").starts_with("line 2, column"));
    assert!(error("{\"items\": [{}]}").contains("missing field"));
}

#[test]
fn our_own_form_is_read_as_json_too() {
    let text = r#"{"rack": [{"name": "A", "hosts": ["n1"], "cidrs": ["10.0.1.0/24"]}]}"#;
    let topology = Topology::parse(text).unwrap();
    assert_eq!(name(topology.rack_of_address(address("10.0.1.9"))), "A");
    let bad = r#"{"rack": [{"name": "A", "cidrs": ["10.0.1.0/24", "10"]}]}"#;
    let message = Topology::parse(bad).unwrap_err().to_string();
    assert!(message.contains("rack `A`, cidrs[1]: `10` is no address range"), "{message}");
    assert_eq!(Topology::parse("{}").unwrap().racks().len(), 0);
}

#[test]
fn what_is_written_is_read_the_same() {
    for text in [FILE, SLURM, NODES, "node01 A\n10.0.0.2 B\n", ""] {
        let topology = Topology::parse(text).unwrap();
        assert_eq!(Topology::parse(&topology.to_toml()).unwrap(), topology, "{}", topology.to_toml());
    }
}

#[test]
fn addresses_of_known_hosts_come_from_a_hosts_file() {
    let mut topology = Topology::parse("node01 A\nnode02 B\n10.0.0.9 B\n").unwrap();
    topology.learn_addresses(
        "127.0.1.1 node01\n10.0.0.1 node01.cluster node01 # me\n10.0.0.2 n2 node02\n10.0.0.3 other\n\
         10.0.0.9 node01\nfd00::2 node02\nrubbish node01\n",
    );
    let rack = |text: &str| name(topology.rack_of_address(address(text)));
    assert_eq!([rack("10.0.0.1"), rack("10.0.0.2"), rack("fd00::2")], ["A", "B", "B"]);
    // The file's own word counts, nobody else is known, and loopback is everywhere.
    assert_eq!([rack("10.0.0.9"), rack("10.0.0.3"), rack("127.0.1.1")], ["B", "-", "-"]);
    assert_eq!(topology.host_of_address(address("10.0.0.1")), Some("node01"));
}

#[test]
fn a_name_that_looks_like_the_beginning_of_an_address_is_not_its_host() {
    let topology = Topology::parse("10 A\n").unwrap();
    assert_eq!(name(topology.rack_of_host("10.0.0.1")), "-");
}

#[test]
fn empty_and_endless_names_are_errors() {
    assert!(Topology::parse("[[rack]]\nname = \"\"\n").is_err());
    assert!(Topology::parse(&format!("{} A\n", "n".repeat(300))).is_err());
}

#[test]
fn hosts_that_are_named_in_many_short_lines_are_refused() {
    let lines = "SwitchName=s Nodes=n[0-262143]\n".repeat(5);
    assert!(Topology::parse(&lines).unwrap_err().to_string().starts_with("line 5, column 1: "));
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(words in vec(any_word(), 0..30)) {
        let text = words.concat();
        let _ = Topology::parse(&text);
        let mut topology = Topology::default();
        topology.learn_addresses(&text);
    }
}

/// Pieces of all forms, so that texts get far into the readers.
fn any_word() -> impl Strategy<Value = String> {
    let pieces = [
        "\n",
        " ",
        "=",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "#",
        "\\\n",
        "-",
        "/",
        "[[rack]]\n",
        "name = \"A\"\n",
        "hosts = [\"n\"]\n",
        "cidrs = [\"10.0.0.0/8\"]\n",
        "SwitchName=s",
        "Nodes=n[1-3]",
        "NodeName=n[1-3]",
        "NodeAddr=10.0.0.[1-3]",
        "\"items\": [",
        "\"metadata\": {\"name\": \"n\", \"labels\": {\"rack\": \"A\"}}",
        "\"rack\": [{\"name\": \"A\"}]",
        "10.0.0.1",
        "host",
        "rack",
    ];
    prop_oneof![4 => select(pieces.to_vec()).prop_map(str::to_owned), 1 => "\\PC{0,4}"]
}

#[test]
fn many_racks_are_read_in_time_in_proportion() {
    let lines: Vec<String> = (0..60_000).map(|number| format!("n{number} r{number}\n")).collect();
    let topology = Topology::parse(&lines.concat()).unwrap();
    assert_eq!(topology.racks().len(), 60_000);
    let more: Vec<String> = (0..70_000).map(|number| format!("n{number} r{number}\n")).collect();
    assert!(Topology::parse(&more.concat()).unwrap_err().message.contains("more than 65536 racks"));
}
