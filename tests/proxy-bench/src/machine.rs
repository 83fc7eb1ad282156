//! What the kernel says about processes and cores, and on which core something runs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::clock::now_nanos;

/// Connections of the load and of the engine at 1,000 streams, twice over.
const NEEDED_FILES: u64 = 8_192;

/// How long both cores are looked at to say that they are idle.
const IDLE_LOOK: Duration = Duration::from_millis(250);

/// The share of a core below which it counts as idle.
pub const IDLE_SHARE: f64 = 0.08;

/// The cores that the measurement uses: the first two that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The proxy's.
    pub proxy: usize,
    /// The engine's and the load's.
    pub load: usize,
}

impl Cores {
    /// The first two cores that this process may use.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn find() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).context("the kernel does not say which cores may be used")?;
        let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
        match (cores.next(), cores.next()) {
            (Some(proxy), Some(load)) => Ok(Self { proxy, load }),
            _ => anyhow::bail!("two cores are needed: one for the proxy, one for the load"),
        }
    }
}

/// Lets this thread, and what it starts from now on, run on these cores only.
///
/// # Errors
/// When the kernel refuses.
pub fn pin(cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core).with_context(|| format!("core {core} cannot be named"))?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("no pinning to {cores:?}"))
}

/// Raises the limit of open files as far as is needed.
///
/// # Errors
/// When that is not allowed.
pub fn allow_open_files() -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files is unknown")?;
    if soft >= NEEDED_FILES {
        return Ok(());
    }
    ensure!(hard >= NEEDED_FILES, "{NEEDED_FILES} open files are needed, the hard limit is {hard} (ulimit -Hn)");
    setrlimit(Resource::RLIMIT_NOFILE, NEEDED_FILES, hard).context("the limit of open files cannot be raised")
}

/// Nanoseconds that all threads of these processes were on a core.
#[must_use]
pub fn cpu_nanos(processes: &[i32]) -> u64 {
    let threads = processes.iter().flat_map(|process| std::fs::read_dir(format!("/proc/{process}/task")));
    let threads = threads.flatten().flatten();
    threads.filter_map(|thread| schedstat(&std::fs::read_to_string(thread.path().join("schedstat")).ok()?)).sum()
}

/// The first number of a `schedstat`: nanoseconds on a core.
fn schedstat(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Resident bytes of these processes together; pages that they share count for each.
#[must_use]
pub fn resident_bytes(processes: &[i32]) -> u64 {
    let statuses =
        processes.iter().filter_map(|process| std::fs::read_to_string(format!("/proc/{process}/status")).ok());
    statuses.filter_map(|text| resident(&text)).sum()
}

/// `VmRSS` of a `status`, in bytes.
fn resident(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

/// Seconds that each core was busy since the machine started, other machines' taking of it included.
#[must_use]
pub fn busy_seconds() -> Vec<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u32::try_from(ticks).ok()).unwrap_or(100);
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&text).into_iter().map(|busy| busy as f64 / f64::from(ticks)).collect()
}

/// Ticks of each core that were not idle and not waiting for a disk.
fn busy_ticks(text: &str) -> Vec<u64> {
    let cores = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let busy = cores.map(|line| {
        let numbers: Vec<u64> = line.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in user already.
        [0, 1, 2, 5, 6, 7].iter().filter_map(|at| numbers.get(*at)).sum()
    });
    busy.collect()
}

/// Waits until the cores of the measurement have been idle for a moment, at most for `bound`; whether they were.
pub async fn idle(cores: Cores, bound: Duration) -> bool {
    let begun = now_nanos();
    loop {
        let (before, at) = (busy_seconds(), now_nanos());
        tokio::time::sleep(IDLE_LOOK).await;
        let (after, seconds) = (busy_seconds(), seconds_since(at));
        let share = |core: usize| match (before.get(core), after.get(core)) {
            (Some(before), Some(after)) => (after - before) / seconds,
            _ => 0.0,
        };
        if share(cores.proxy).max(share(cores.load)) < IDLE_SHARE {
            return true;
        }
        if seconds_since(begun) > bound.as_secs_f64() {
            return false;
        }
    }
}

/// Seconds since a moment of [`now_nanos`].
#[must_use]
pub fn seconds_since(nanos: u64) -> f64 {
    now_nanos().saturating_sub(nanos) as f64 / 1e9
}

/// The machine in a line: processor, cores, memory, kernel.
#[must_use]
pub fn description() -> String {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = busy_seconds().len();
    let processor = value(&read("/proc/cpuinfo"), "model name");
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    format!("{processor}, {cores} cores, memory {memory}, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert_eq!(schedstat("123456789 42 7\n"), Some(123_456_789));
        assert_eq!(resident("Name:\tx\nVmRSS:\t    9064 kB\nThreads:\t1\n"), Some(9_064 * 1024));
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 100 50 4 5 6 1 1\ncpu1 10 0 0 1 1 0 0 0 0 0\nintr 1 2\n";
        assert_eq!(busy_ticks(stat), [21, 10]);
    }

    #[test]
    fn this_process_uses_memory_and_a_core() {
        let ours = [i32::try_from(std::process::id()).unwrap()];
        assert!(resident_bytes(&ours) > 100_000);
        assert!(cpu_nanos(&ours) > 0);
        assert!(!busy_seconds().is_empty());
    }
}
