//! Against a simulated pipeline, of which everything is known.

use super::*;

/// A link that takes `per_byte` for each byte, one request after another, and a wire that takes `latency` for all of
/// them at once.
struct Pipeline {
    latency: u64,
    per_byte: u64,
    busy_until: u64,
}

/// What really happened to a request.
struct Truth {
    unit: Unit,
    queue_ns: u64,
    transmit_ns: u64,
}

impl Pipeline {
    fn send(&mut self, post_ns: u64, bytes: u64, idle: bool) -> Truth {
        let start = post_ns.max(self.busy_until);
        self.busy_until = start + bytes * self.per_byte;
        let done_ns = self.busy_until + self.latency;
        let unit = Unit { post_ns, done_ns, bytes, requests: 1, class: Class::Out, idle, lead: false };
        Truth { unit, queue_ns: start - post_ns, transmit_ns: bytes * self.per_byte }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn units(run: &[Truth]) -> Vec<Unit> {
    run.iter().map(|truth| truth.unit).collect()
}

/// Requests one at a time of two sizes, then bursts.
fn run(random: &mut Random) -> (Vec<Truth>, u64) {
    let mut link =
        Pipeline { latency: 1000 + random.below(50_000), per_byte: 1 + random.below(4), busy_until: 0 };
    let latency = link.latency;
    let mut now = 0;
    let mut run = Vec::new();
    for turn in 0..12 {
        let truth = link.send(now, if turn % 2 == 0 { 64 } else { 4096 }, true);
        now = truth.unit.done_ns + random.below(1000);
        run.push(truth);
    }
    for _ in 0..20 {
        let mut last = 0;
        for place in 0..=random.below(16) {
            let truth = link.send(now + place * random.below(50), 1 + random.below(8192), place == 0);
            last = truth.unit.done_ns;
            run.push(truth);
        }
        now = last + random.below(5000);
    }
    (run, latency)
}

#[test]
fn the_split_finds_what_the_pipeline_did() {
    let mut random = Random(1);
    for _ in 0..200 {
        let (run, latency) = run(&mut random);
        let units = units(&run);
        let unloaded = fit(&units, Class::Out).unwrap();
        assert!(unloaded.latency_ns.abs_diff(latency) <= 1, "{unloaded:?}, {latency}");
        for (truth, parts) in run.iter().zip(split(&units, Class::Out, unloaded)) {
            assert!(parts.queue_ns.abs_diff(truth.queue_ns) <= 1, "{parts:?}");
            assert!(parts.transmit_ns.abs_diff(truth.transmit_ns) <= 2, "{parts:?}");
        }
    }
}

#[test]
fn the_parts_add_up_whatever_the_times_are() {
    let mut random = Random(2);
    for _ in 0..500 {
        let mut done_ns = 0;
        let units: Vec<Unit> = (0..50)
            .map(|_| {
                done_ns += random.below(1000);
                Unit { post_ns: random.below(done_ns + 1), done_ns, requests: 1, ..Unit::default() }
            })
            .collect();
        let unloaded = Unloaded { latency_ns: random.below(3000), ns_per_byte: None };
        for (unit, parts) in units.iter().zip(split(&units, Class::Out, unloaded)) {
            assert_eq!(parts.queue_ns + parts.transmit_ns + parts.wire_ns, unit.done_ns - unit.post_ns);
            assert!(parts.wire_ns <= unloaded.latency_ns);
        }
    }
}

#[test]
fn one_request_at_a_time_never_queues() {
    let mut link = Pipeline { latency: 5000, per_byte: 2, busy_until: 0 };
    let mut now = 0;
    let run: Vec<Truth> = (0..20)
        .map(|_| {
            let truth = link.send(now, 4096, true);
            now = truth.unit.done_ns;
            truth
        })
        .collect();
    let units = units(&run);
    let unloaded = fit(&units, Class::Out).unwrap();
    assert_eq!(unloaded, Unloaded { latency_ns: 5000 + 8192, ns_per_byte: None });
    assert!(split(&units, Class::Out, unloaded).iter().all(|parts| parts.queue_ns == 0));
}

#[test]
fn few_requests_or_only_groups_give_no_latency() {
    let single = Unit { done_ns: 10, requests: 1, idle: true, ..Unit::default() };
    assert_eq!(fit(&[single; SAMPLES_MIN - 1], Class::Out), None);
    assert!(fit(&[single; SAMPLES_MIN], Class::Out).is_some());
    assert_eq!(fit(&[Unit { requests: 4, ..single }; 50], Class::Out), None);
    assert_eq!(fit(&[Unit { idle: false, ..single }; 50], Class::Out), None);
    assert_eq!(fit(&[single; 50], Class::Back), None);
}

#[test]
fn reads_are_kept_apart_from_writes() {
    let read = Unit { done_ns: 900, requests: 1, idle: true, class: Class::Back, ..Unit::default() };
    let write = Unit { done_ns: 100, class: Class::Out, ..read };
    let units = [[read; 8], [write; 8]].concat();
    assert_eq!(fit(&units, Class::Back).unwrap().latency_ns, 900);
    assert_eq!(fit(&units, Class::Out).unwrap().latency_ns, 100);
    let unloaded = Unloaded { latency_ns: 100, ns_per_byte: None };
    assert_eq!(split(&units, Class::Out, unloaded).len(), 8);
}

#[test]
fn a_larger_request_that_was_faster_makes_no_negative_rate() {
    let unit = |bytes, done_ns| Unit { bytes, done_ns, requests: 1, idle: true, ..Unit::default() };
    let units = [[unit(64, 900); 5], [unit(4096, 500); 5]].concat();
    assert_eq!(fit(&units, Class::Out).unwrap().ns_per_byte, Some(0.0));
}
