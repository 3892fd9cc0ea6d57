//! Draws a schedule from a seed. Most disasters are drawn close to a failover: that is where they
//! hurt.

use std::time::Duration;

use farshore_lab::draw::Draw;
use farshore_lab::faults::{Fault, What as Wire, Whom};
use farshore_lab::fence::Moment;

use crate::schedule::{Event, Group, Part, Schedule, Stem, What, other};

const PROCESSES: [&str; 4] = [
    "tsr-manager",
    "workload-manager",
    "drbd-node-agent",
    "protectionzone",
];
const CLUSTERS: [&str; 3] = ["hub", "east", "west"];
const SITES: [&str; 2] = ["east", "west"];
/// Names of the groups, for at most two.
const GROUPS: [&str; 2] = ["shop", "bank"];

/// So many seeds in a row share the seed of their stems: a stem takes nearly as long as the rest of a
/// history, and no two stems see the same order of things.
const SEEDS_OF_A_STEM: u64 = 100;

/// The schedule of a seed.
pub fn schedule(seed: u64) -> Schedule {
    let draw = &mut Draw::new(seed, "world");
    let nodes = if draw.chance(15) { 2 } else { 1 };
    let mut groups = vec![Group {
        name: GROUPS[0].into(),
        home: "east".into(),
        vms: vec![1],
    }];
    // Most worlds are small: what can go wrong with two of a thing goes wrong in few of them.
    if draw.chance(20) {
        groups.push(Group {
            name: GROUPS[1].into(),
            home: (*draw.one_of(&SITES)).into(),
            vms: vec![1],
        });
    }
    if draw.chance(35) {
        let disks = draw.between(1, 2) as usize;
        groups[0].vms.push(disks);
    }
    let mut setup = Part::default();
    if draw.chance(25) {
        let draw = &mut Draw::new(seed, "setup");
        for _ in 0..draw.between(1, 3) {
            let at = draw.between(0, 25_000);
            disaster(draw, nodes, at, Duration::from_secs(45), &mut setup);
        }
    }
    let drill = drill(seed, nodes, &groups);
    // A world that is hurt while it comes about is like no other.
    let shared = setup.is_empty();
    Schedule {
        stem: Stem {
            seed: if shared { seed / SEEDS_OF_A_STEM } else { seed },
            nodes,
            groups,
            setup,
        },
        seed,
        drill,
        proof: Draw::new(seed, "proof").chance(40),
    }
}

fn drill(seed: u64, nodes: usize, groups: &[Group]) -> Part {
    let mut part = Part::default();
    let draw = &mut Draw::new(seed, "failovers");
    let mut moments = Vec::new();
    let mut active: Vec<String> = groups.iter().map(|g| g.home.clone()).collect();
    let mut at = draw.between(500, 8_000);
    for n in 1..=draw.between(1, 3) {
        let which = draw.between(0, groups.len() as u64 - 1) as usize;
        let target = other(&active[which]);
        active[which] = target.into();
        let name = format!("move-{n}");
        moments.push(at);
        part.events
            .push(failover(draw, at, &name, &groups[which].name, target));
        odd_users(draw, at, &name, &groups[which], target, &mut part);
        at += if draw.chance(30) {
            draw.between(0, 6_000)
        } else {
            draw.between(20_000, 100_000)
        };
    }
    let draw = &mut Draw::new(seed, "disasters");
    for _ in 0..draw.between(1, 5) {
        let near = *draw.one_of(&moments);
        let at = if draw.chance(75) {
            (near + draw.between(0, 10_000)).saturating_sub(1_000)
        } else {
            draw.between(0, near + 60_000)
        };
        disaster(draw, nodes, at, Duration::from_secs(90), &mut part);
    }
    part.events.sort_by_key(|e| e.at_ms);
    part
}

fn failover(draw: &mut Draw, at_ms: u64, name: &str, group: &str, target: &str) -> Event {
    let timeout = draw.chance(35).then(|| draw.between(60, 120) as u32);
    let what = What::FailOver {
        name: name.into(),
        group: group.into(),
        target: target.into(),
        timeout,
        queue: draw.chance(15),
        force: draw.chance(10),
    };
    Event { at_ms, what }
}

/// What people do around a failover that they should not, or need not.
fn odd_users(
    draw: &mut Draw,
    at: u64,
    name: &str,
    group: &Group,
    target: &'static str,
    part: &mut Part,
) {
    let mut push = |at_ms, what| part.events.push(Event { at_ms, what });
    let soon = |draw: &mut Draw| at + draw.between(0, 9_000);
    let name: String = name.into();
    if draw.chance(15) {
        let at = soon(draw);
        let target = if draw.chance(50) {
            target
        } else {
            other(target)
        };
        push(
            at,
            failover(draw, at, &format!("{name}-again"), &group.name, target).what,
        );
    }
    if draw.chance(12) {
        push(soon(draw), What::Abort { name: name.clone() });
    }
    if draw.chance(12) {
        push(soon(draw), What::Delete { name });
    }
    if draw.chance(8) {
        let for_ms = draw.between(500, 20_000);
        let group = group.name.clone();
        push(soon(draw), What::Pause { group, for_ms });
    }
    if draw.chance(6) {
        push(soon(draw), What::RivalZone);
    }
    if draw.chance(15) {
        let cluster = target.into();
        push(at.saturating_sub(500), What::Taint { cluster });
    }
}

/// One thing that goes wrong at `at`, for at most `longest`.
fn disaster(draw: &mut Draw, nodes: usize, at: u64, longest: Duration, part: &mut Part) {
    let for_ms = draw
        .duration(Duration::from_millis(300), longest)
        .as_millis() as u64;
    let process: String = (*draw.one_of(&PROCESSES[..3])).into();
    let process = if draw.chance(8) {
        PROCESSES[3].into()
    } else {
        process
    };
    let cluster: String = (*draw.one_of(&CLUSTERS)).into();
    let site: String = (*draw.one_of(&SITES)).into();
    let alone = draw.chance(50).then(|| site.clone());
    let on_sites = matches!(process.as_str(), "workload-manager" | "drbd-node-agent");
    let only = alone.filter(|_| on_sites);
    let what = match draw.between(0, 99) {
        0..=14 => What::Kill {
            process,
            cluster: only,
        },
        15..=36 => What::KillAtWrite {
            process,
            cluster: only,
            write: draw.between(1, 8) as u32,
            moment: *draw.one_of(&[Moment::BeforeSent, Moment::AfterApplied]),
        },
        37..=49 => What::Link { for_ms },
        50..=59 => What::Api { cluster, for_ms },
        60..=64 => What::Site {
            cluster: site,
            for_ms,
        },
        65..=71 => {
            let number = draw.between(1, nodes as u64);
            What::Node {
                node: format!("{site}-{number}"),
                cluster: site,
                for_ms,
            }
        }
        72..=74 => What::Slow {
            cluster,
            ms: draw.between(20, 3_000),
            for_ms,
        },
        _ => {
            part.faults.push(wire_fault(draw, at, for_ms));
            return;
        }
    };
    part.events.push(Event { at_ms: at, what });
}

fn wire_fault(draw: &mut Draw, from_ms: u64, for_ms: u64) -> Fault {
    let pick = |draw: &mut Draw, all: &[&str], percent| {
        draw.chance(percent).then(|| (*draw.one_of(all)).to_owned())
    };
    let whom = Whom {
        process: pick(draw, &PROCESSES[..3], 60),
        on: None,
        to: pick(draw, &CLUSTERS, 60),
    };
    let percent = draw.between(10, 90);
    let what = match draw.between(0, 9) {
        0 => Wire::Latency {
            min_ms: 1,
            max_ms: draw.between(2, 4_000),
        },
        1 => Wire::ServerError { percent },
        2 => Wire::TooManyRequests {
            percent,
            retry_after_seconds: draw.between(1, 5),
        },
        3 => Wire::Dropped { percent },
        4 => Wire::AnswerLost { percent },
        5 => Wire::Partition,
        6 => Wire::StaleWatch,
        7 => Wire::SilentWatch,
        8 => Wire::ExpiredWatch { percent },
        _ => Wire::Conflict { percent },
    };
    Fault {
        from_ms,
        to_ms: from_ms + for_ms,
        whom,
        what,
    }
}
