//! What the kernel says of the process. Only Linux does; elsewhere these are unknown.

/// Resident memory in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    resident_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}

/// How many file descriptors are open.
pub(super) fn open_files() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // Less the one that this reading has open.
    u64::try_from(entries.count()).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(resident_in("Name:\tgco-proxy\nVmRSS:\t   12345 kB\nThreads:\t3\n"), Some(12_345 * 1_024));
        assert_eq!(resident_in("Name:\tgco-proxy\n"), None);
        assert!(resident_bytes().unwrap() > 1_000_000);
        assert!(open_files().unwrap() >= 3);
    }
}
