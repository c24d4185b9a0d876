//! Who has which partitions: pure rules.

use flowgate_core::ids::RunId;

/// The partition of a run. Part of what is stored: it never changes.
pub(super) fn partition_of(run_id: RunId, partitions: u16) -> u16 {
    // FNV-1a over the id's bytes: the ids of runs that begin together share their first ones.
    let hash = run_id.0.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The low bits alone are the weak ones of this hash.
    let mixed = (hash ^ (hash >> 32)) % u64::from(partitions);
    u16::try_from(mixed).expect("it is under a count of 16 bits")
}

/// How many partitions each of `members` may have, this one among them.
pub(super) fn share(partitions: u16, members: usize) -> usize {
    usize::from(partitions).div_ceil(members.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_in_one_partition_for_ever_and_runs_spread() {
        let fixed = RunId::derived("order", "7");
        assert_eq!((partition_of(fixed, 1), partition_of(fixed, 8)), (0, 2));
        let mut counts = [0_u32; 8];
        for number in 0..8_000 {
            let run_id = RunId::derived("order", &format!("{number}"));
            counts[usize::from(partition_of(run_id, 8))] += 1;
        }
        assert!(counts.iter().all(|count| (850..=1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn all_shares_together_cover_all_partitions() {
        for (partitions, members, each) in [(1, 1, 1), (1, 3, 1), (8, 2, 4), (8, 3, 3), (4, 0, 4)] {
            assert_eq!(share(partitions, members), each, "{partitions} over {members}");
            assert!(share(partitions, members) * members.max(1) >= usize::from(partitions));
        }
    }
}
