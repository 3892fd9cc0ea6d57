//! TCP ports of DRBD: one for each replicated volume, lowest free first, so that the last port of
//! the documented range 7000 to 8000 is used last [S1].

use std::collections::BTreeSet;

use farshore_api::zone::PortRange;

/// Not enough ports are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Ports that are free.
    pub free: usize,
    /// Ports that are wanted.
    pub wanted: usize,
}

/// The lowest free ports, ascending; all or none.
pub fn allocate(
    range: &PortRange,
    taken: &BTreeSet<i32>,
    wanted: usize,
) -> Result<Vec<i32>, Exhausted> {
    let free = (range.start..=range.end).filter(|port| !taken.contains(port));
    let ports: Vec<i32> = free.take(wanted).collect();
    if ports.len() == wanted {
        Ok(ports)
    } else {
        Err(Exhausted {
            free: ports.len(),
            wanted,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: i32, end: i32) -> PortRange {
        PortRange { start, end }
    }

    #[test]
    fn port_8000_is_inside_the_range_and_used_last() {
        let all_but_last: BTreeSet<i32> = (7000..8000).collect();
        assert_eq!(
            allocate(&range(7000, 8000), &all_but_last, 1),
            Ok(vec![8000])
        );
        assert_eq!(
            allocate(&range(7000, 8000), &all_but_last, 2),
            Err(Exhausted { free: 1, wanted: 2 })
        );
    }

    proptest! {
        #[test]
        fn allocated_ports_are_free_distinct_inside_and_lowest(
            start in 7000..7990_i32, len in 1..11_i32,
            taken in prop::collection::btree_set(6990..8010_i32, 0..30), wanted in 0..8_usize,
        ) {
            let range = range(start, start + len);
            match allocate(&range, &taken, wanted) {
                Ok(ports) => {
                    prop_assert_eq!(ports.len(), wanted);
                    prop_assert!(ports.windows(2).all(|w| w[0] < w[1]));
                    let last = ports.last().copied().unwrap_or(start - 1);
                    for port in start..=last {
                        prop_assert!(taken.contains(&port) != ports.contains(&port));
                    }
                    prop_assert!(ports.iter().all(|p| *p >= range.start && *p <= range.end));
                }
                Err(Exhausted { free, .. }) => {
                    let really = (range.start..=range.end).filter(|p| !taken.contains(p)).count();
                    prop_assert_eq!(free, really);
                    prop_assert!(really < wanted);
                }
            }
        }

        #[test]
        fn allocations_one_after_the_other_never_meet(wants in prop::collection::vec(1..16_usize, 1..90)) {
            let range = PortRange::default();
            let mut taken = BTreeSet::new();
            for wanted in wants {
                if let Ok(ports) = allocate(&range, &taken, wanted) {
                    for port in ports {
                        prop_assert!(taken.insert(port));
                    }
                }
            }
        }
    }
}
