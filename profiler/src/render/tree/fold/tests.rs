use std::collections::BTreeMap;

use super::*;
use crate::random::Random;
use crate::render::tree::{WeightedStack, fold_stalls};
use crate::trace::record::{Frame, Space, Stack};

/// One stall after the other, by the text of its whole path.
fn plainly(analysis: &Analysis, options: &FlameOptions) -> Vec<(String, u64)> {
    let labels = Labels::new(analysis);
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (stall, _) in analysis.stall_sums().filter(|(stall, _)| stall.weight_ns > 0) {
        let frames = frames_of(analysis, options, &labels, &Site::of(stall));
        *sums.entry(WeightedStack { frames, weight_ns: 0 }.path()).or_default() += stall.weight_ns;
    }
    sums.into_iter().collect()
}

/// Stalls with a bit of everything, of names that are prefixes of each other, empty or in need of escaping.
fn analysis(seed: u64) -> Analysis {
    let mut random = Random(seed);
    let names = ["a", "a b", "a;b", "", "poll", "__GI_poll", "getaddrinfo", "x 12", "# c", "r\u{1b}"];
    let mut analysis = Analysis::default();
    for id in 1..12 {
        let frames = (0..random.below(6)).map(|_| Frame {
            function: names[random.below(names.len())].to_owned(),
            module: ["libc.so.6", "", "train"][random.below(3)].to_owned(),
            offset: random.below(3) as u64,
        });
        let frames: Vec<Frame> = frames.collect();
        let truncated = random.below(5) == 0;
        analysis.stacks.insert(id, Stack { id, space: Space::User, frames, truncated });
    }
    for id in 0..5 {
        analysis.processes.insert(id, names[random.below(names.len())].to_owned());
        analysis.threads.insert(id, names[random.below(names.len())].to_owned());
    }
    for _ in 0..400 {
        analysis.stalls.push(Stall {
            pid: random.below(3) as u32,
            tid: random.below(5) as u32,
            cause: [Cause::SockRecv, Cause::DnsResolve, Cause::TcpConnect][random.below(3)],
            peer: ["", "10.0.0.1:80", "/run/a;b"][random.below(3)].to_owned(),
            detail: ["", "x 7", "no answer"][random.below(3)].to_owned(),
            start_ns: 0,
            end_ns: 9,
            weight_ns: random.below(1000) as u64,
            in_flight: random.below(4) == 0,
            began_earlier: false,
            user_stack: random.below(13) as u64,
            kernel_stack: random.below(13) as u64,
            api: ["", "getaddrinfo"][random.below(2)],
            call: ["poll", "none", "recvfrom"][random.below(3)],
        });
    }
    analysis
}

#[test]
fn what_is_put_into_words_once_is_what_each_stall_says() {
    for seed in 0..40 {
        let analysis = analysis(seed);
        for view in View::ALL {
            for kernel in [false, true] {
                let options = FlameOptions { view, kernel, ..FlameOptions::default() };
                let folded = fold_stalls(&analysis, &options).unwrap();
                let folded: Vec<_> = folded.iter().map(|stack| (stack.path(), stack.weight_ns)).collect();
                assert_eq!(folded, plainly(&analysis, &options), "{seed} {view} {kernel}");
            }
        }
    }
}

#[test]
fn frames_that_weigh_too_little_are_the_last_ones_and_nothing_is_lost() {
    for seed in 0..10 {
        let analysis = analysis(seed);
        let tree = crate::render::tree::fold_tree(&analysis, &FlameOptions::default()).unwrap();
        for least in [0, 100, 5_000, 50_000, u64::MAX] {
            let lines = tree.cut(least);
            let weights = lines.iter().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
            assert_eq!(weights.sum::<u64>(), tree.total_ns(), "{seed} {least}");
        }
        let mut all: Vec<String> = tree.lines().collect();
        let mut uncut = tree.cut(0);
        all.sort();
        uncut.sort();
        assert_eq!(uncut, all, "{seed}");
    }
}
