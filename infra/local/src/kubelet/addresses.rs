//! The addresses that pods get: from the ranges for documentation first, which everybody knows to
//! be made up, then from the range for benchmarks, which has room for every suite.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ranges for documentation (RFC 5737), one for each of the first three regions.
const DOCUMENTATION: [Ipv4Addr; 3] =
    [Ipv4Addr::new(192, 0, 2, 0), Ipv4Addr::new(198, 51, 100, 0), Ipv4Addr::new(203, 0, 113, 0)];

/// The start of the range for benchmarks, 198.18.0.0/15 (RFC 2544).
const BENCHMARKS: u32 = Ipv4Addr::new(198, 18, 0, 0).to_bits();

/// How many addresses of the range for benchmarks each region has.
const OVERFLOW_ADDRESSES: u32 = 8192;

/// How many regions can run on one machine: the range for benchmarks is cut into that many parts.
pub const MAXIMUM_REGIONS: usize = 16;

/// The free and taken addresses of one region.
#[derive(Debug)]
pub(super) struct PodAddresses {
    /// The documentation range first: its addresses read best.
    ranges: [Vec<Ipv4Addr>; 2],
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    addresses: BTreeSet<Ipv4Addr>,
    /// Where the search in each range goes on, so that an address rests before another pod gets it.
    next: [usize; 2],
}

impl PodAddresses {
    /// The addresses of the region with this number, counted from 0.
    pub(super) fn of_region(number: usize) -> Self {
        let number = number % MAXIMUM_REGIONS;
        let documentation = DOCUMENTATION.get(number).map(|range| range.to_bits());
        let documentation =
            documentation.into_iter().flat_map(|base| (1..=254).map(move |host| Ipv4Addr::from_bits(base + host)));
        let overflow = BENCHMARKS + u32::try_from(number).unwrap_or_default() * OVERFLOW_ADDRESSES;
        let overflow = (1..OVERFLOW_ADDRESSES - 1).map(move |host| Ipv4Addr::from_bits(overflow + host));
        Self { ranges: [documentation.collect(), overflow.collect()], taken: Mutex::default() }
    }

    /// An address that no pod has; `None` when all are taken.
    pub(super) fn take(&self) -> Option<Ipv4Addr> {
        let mut taken = self.taken();
        for (which, range) in self.ranges.iter().enumerate() {
            for step in 0..range.len() {
                let position = (taken.next[which] + step) % range.len();
                if taken.addresses.insert(range[position]) {
                    taken.next[which] = position + 1;
                    return Some(range[position]);
                }
            }
        }
        None
    }

    /// Marks the address of a pod that had one before.
    pub(super) fn claim(&self, address: IpAddr) {
        if let IpAddr::V4(address) = address {
            self.taken().addresses.insert(address);
        }
    }

    /// The pod with this address is gone.
    pub(super) fn release(&self, address: IpAddr) {
        if let IpAddr::V4(address) = address {
            self.taken().addresses.remove(&address);
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_given_once_and_none_belongs_to_two_regions() {
        let mut seen = BTreeSet::new();
        for region in 0..4 {
            let addresses = PodAddresses::of_region(region);
            for _ in 0..600 {
                assert!(seen.insert(addresses.take().unwrap()));
            }
        }
        assert!(seen.contains(&Ipv4Addr::new(192, 0, 2, 1)));
        assert!(seen.contains(&Ipv4Addr::new(198, 18, 0, 1)));
        assert!(seen.contains(&Ipv4Addr::new(203, 0, 113, 254)));
        assert!(!seen.contains(&Ipv4Addr::new(192, 0, 2, 0)) && !seen.contains(&Ipv4Addr::new(192, 0, 2, 255)));
    }

    #[test]
    fn an_address_rests_before_it_is_given_again() {
        let addresses = PodAddresses::of_region(0);
        let first = addresses.take().unwrap();
        addresses.release(first.into());
        assert_ne!(addresses.take().unwrap(), first);
    }

    #[test]
    fn a_claimed_address_is_not_given() {
        let addresses = PodAddresses::of_region(0);
        addresses.claim([192, 0, 2, 1].into());
        assert_eq!(addresses.take().unwrap(), Ipv4Addr::new(192, 0, 2, 2));
    }

    #[test]
    fn when_all_are_taken_there_is_none() {
        let addresses = PodAddresses::of_region(5);
        while addresses.take().is_some() {}
        addresses.release([198, 18, 160, 9].into());
        assert_eq!(addresses.take(), Some(Ipv4Addr::new(198, 18, 160, 9)));
        assert_eq!(addresses.take(), None);
    }
}
