//! Measures one contender in one cell.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::cache::{Cache, RunFolder};
use gco_bed::ports::free_ports;
use gco_bed::process::Supervised;
use gco_bed::wait;
use tokio::time::sleep;

use crate::cells::{
    self, Cell, MEMORY, MEMORY_MEASURED, MEMORY_RAMP, MEMORY_REST, SLOW, SLOW_BOUND, SLOW_READERS, SLOW_STILL,
    SLOW_STREAM,
};
use crate::clock::now_nanos;
use crate::install::Installed;
use crate::lane::Lane;
use crate::load::{Load, SlowReader, Target, probe};
use crate::machine::{self, Cores, busy_seconds, cpu_nanos, resident_bytes, seconds_since};
use crate::mock::{Mock, read};
use crate::peers::{Contender, Place, settings};
use crate::record::Record;
use crate::statistics::quantile;
use crate::tag::Tag;

/// How long a proxy may take until it answers; Python needs seconds.
const START_BOUND: Duration = Duration::from_secs(60);

/// How long a proxy has to end after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// How long requests of a cell may go on after it.
const LOAD_GRACE: Duration = Duration::from_secs(1);

/// The share of either core that others may have had; above it the cell is measured once more.
const MOST_FOREIGN_SHARE: f64 = 0.08;

/// How often a cell is measured when others were in the way.
const TRIES: u32 = 2;

const MIB: f64 = 1_048_576.0;

/// The engine, the load, and the cores that they and the proxy run on.
#[derive(Debug)]
pub struct Bench {
    /// The cores.
    pub cores: Cores,
    /// Whether the proxy has a core of its own.
    pub is_pinned: bool,
    /// How long idle cores are waited for.
    pub idle_wait: Duration,
    /// What measured times are multiplied by.
    pub time: f64,
    mock: Mock,
    load: Lane,
    // When everything shares both cores, the engine's thread is its own.
    _engine: Option<Lane>,
}

impl Bench {
    /// Starts an engine and what the load runs on.
    ///
    /// # Errors
    /// When a thread, a core or a port cannot be had.
    pub async fn start(cores: Cores, is_pinned: bool, idle_wait: Duration, time: f64) -> anyhow::Result<Self> {
        let places = if is_pinned { vec![cores.load] } else { vec![cores.proxy, cores.load] };
        let load = Lane::start("load", &places)?;
        let engine = if is_pinned { None } else { Some(Lane::start("engine", &places)?) };
        let mock = Mock::start(engine.as_ref().unwrap_or(&load).handle()).await?;
        Ok(Self { cores, is_pinned, idle_wait, time, mock, load, _engine: engine })
    }

    /// The engine.
    #[must_use]
    pub fn mock(&self) -> &Mock {
        &self.mock
    }

    /// The runtime of the load.
    #[must_use]
    pub fn load(&self) -> &tokio::runtime::Handle {
        self.load.handle()
    }
}

/// A contender that runs; a base is always there.
#[derive(Debug)]
pub struct Running {
    contender: Contender,
    target: Target,
    // Before the folder that it writes into.
    process: Option<Supervised>,
    _folder: Option<RunFolder>,
}

impl Running {
    /// Starts a contender, freshly; a base is there already.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(
        bench: &Bench,
        cache: &Cache,
        contender: Contender,
        installed: Option<&Installed>,
    ) -> anyhow::Result<Self> {
        match installed {
            Some(installed) => Self::proxy(installed, bench, cache).await,
            None => {
                ensure!(contender.is_base(), "{} is not here", contender.name());
                Ok(Self::base(contender, &bench.mock))
            }
        }
    }

    /// The client without a proxy.
    #[must_use]
    pub fn base(contender: Contender, mock: &Mock) -> Self {
        let prefill = (contender == Contender::DirectBoth).then_some(mock.prefill);
        Self { contender, target: Target { address: mock.decode, prefill }, process: None, _folder: None }
    }

    /// Starts a proxy and waits until a stream comes through it.
    ///
    /// # Errors
    /// When it does not start, or does not answer, with the end of its log.
    pub async fn proxy(installed: &Installed, bench: &Bench, cache: &Cache) -> anyhow::Result<Self> {
        let name = installed.contender.name();
        let folder = cache.run_folder(&format!("bench-{name}")).await?;
        let ports = free_ports(2).context("picking free ports")?;
        let [port, metrics_port] = ports[..] else { anyhow::bail!("two ports were asked for") };
        let place = Place {
            port,
            metrics_port,
            prefill: bench.mock.prefill,
            decode: bench.mock.decode,
            threads: if bench.is_pinned { 1 } else { 2 },
            folder: folder.path(),
        };
        let settings = settings(installed, place)?;
        let Cores { proxy, load } = bench.cores;
        // A process begins on the cores of the thread that starts it.
        machine::pin(&if bench.is_pinned { vec![proxy] } else { vec![proxy, load] })?;
        let process = Supervised::start(settings);
        machine::pin(&[load])?;
        let process = process?;
        let target = Target { address: ([127, 0, 0, 1], port).into(), prefill: None };
        let description = format!("{name} to pass a stream");
        let ready = wait::until(&description, START_BOUND, || async {
            if let Some(status) = process.exit_status() {
                return Ok(Err(anyhow::anyhow!("{name} ended ({status}): {}", process.log_tail())));
            }
            probe(bench.load(), target, Tag::stream(2, 200, 0)).await.map(Ok)
        });
        ready.await.with_context(|| format!("the end of its log: {}", process.log_tail()))??;
        Ok(Self { contender: installed.contender, target, process: Some(process), _folder: Some(folder) })
    }

    /// Where the load goes.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    fn processes(&self) -> Vec<i32> {
        self.process.as_ref().map(Supervised::members).unwrap_or_default()
    }

    /// Ends it.
    pub async fn stop(self) {
        if let Some(process) = &self.process {
            process.stop(STOP_GRACE).await;
        }
    }

    fn record(&self, round: u32, cell: &str) -> Record {
        Record { round, contender: self.contender.name().to_owned(), cell: cell.to_owned(), ..Record::default() }
    }

    /// Measures a cell, once more when others were in the way; the less disturbed measurement counts.
    pub async fn measure(&self, bench: &Bench, round: u32, cell: &Cell) -> Record {
        let foreign = |record: &Record| record.get("foreign_share").unwrap_or(0.0);
        let mut best: Option<Record> = None;
        for tries in 1..=TRIES {
            let was_idle = machine::idle(bench.cores, bench.idle_wait).await;
            let mut record = self.record(round, cell.name);
            self.once(bench, cell, &mut record).await;
            record.set("tries", f64::from(tries));
            record.set("was_idle", f64::from(u8::from(was_idle)));
            let is_clean = was_idle && foreign(&record) <= MOST_FOREIGN_SHARE;
            if best.as_ref().is_none_or(|best| foreign(&record) <= foreign(best)) {
                best = Some(record);
            }
            if is_clean {
                break;
            }
        }
        best.unwrap_or_else(|| self.record(round, cell.name))
    }

    /// What is slow only the first time is done before anything is measured.
    pub async fn warm_up(&self, bench: &Bench) {
        let load = Load::start(bench.load(), self.target, cells::WARM_UP);
        sleep(cells::WARM_UP_FOR).await;
        load.stop(LOAD_GRACE).await;
    }

    async fn once(&self, bench: &Bench, cell: &Cell, record: &mut Record) {
        let processes = self.processes();
        let before = Handed::of(&bench.mock);
        let load = Load::start(bench.load(), self.target, cell.plan);
        let tally = load.tally.clone();
        sleep(cell.warm).await;
        // Only right answers count: a proxy that refuses quickly is not a quick one.
        let begin = Moment::now(&processes, read(&tally.good), read(&tally.events));
        tally.measure(true);
        sleep(cell.measured.mul_f64(bench.time)).await;
        tally.measure(false);
        let end = Moment::now(&processes, read(&tally.good), read(&tally.events));
        load.stop(LOAD_GRACE).await;

        let seconds = end.at.saturating_sub(begin.at) as f64 / 1e9;
        let cpu_us = end.cpu.saturating_sub(begin.cpu) as f64 / 1e3;
        let requests = end.requests.saturating_sub(begin.requests) as f64;
        let events = end.events.saturating_sub(begin.events) as f64;
        record.set("seconds", seconds);
        record.set("requests_per_second", requests / seconds);
        record.set("good", read(&tally.good) as f64);
        record.set("wrong", read(&tally.wrong) as f64);
        record.set("failed", read(&tally.failed) as f64);
        before.set(&bench.mock, record);
        let own_us = end.own.saturating_sub(begin.own) as f64 / 1e3;
        record.set("load_share", own_us / 1e6 / seconds);
        record.set("load_us_per_request", own_us / requests);
        if self.process.is_some() {
            record.set("cpu_share", cpu_us / 1e6 / seconds);
            record.set("cpu_us_per_request", cpu_us / requests);
        }
        // Others on the load's core matter as much: a proxy that waits for the load wakes up for less each time.
        let busy = |core: usize| end.busy(core) - begin.busy(core);
        let (proxy, load) = (busy(bench.cores.proxy), busy(bench.cores.load));
        let others = if bench.is_pinned {
            (proxy - cpu_us / 1e6).max(load - own_us / 1e6)
        } else {
            // Nothing says who had which core; what is ours is the proxy's and this process's.
            (proxy + load - (cpu_us + own_us) / 1e6) / 2.0
        };
        record.set("foreign_share", (others / seconds).max(0.0));
        let mut samples = tally.take_samples();
        let mut quantiles = |name: &str, nanos: &mut [u64], shares: &[(&str, f64)]| {
            for (word, share) in shares {
                if let Some(value) = quantile(nanos, *share) {
                    record.set(&format!("{name}{word}_us"), value as f64 / 1e3);
                }
            }
        };
        let (p50, p99, most) = (("p50", 0.5), ("p99", 0.99), ("max", 1.0));
        quantiles("", &mut samples.total_nanos, &[p50, p99]);
        if cell.plan.tag.streams {
            quantiles("first_", &mut samples.first_nanos, &[p50, p99]);
            quantiles("event_", &mut samples.event_nanos, &[p50, p99, most]);
            record.set("events_per_second", events / seconds);
            if self.process.is_some() {
                record.set("cpu_us_per_event", cpu_us / events);
            }
        }
        record.problem = tally.last_problem();
    }

    /// Resident memory without load and with 1,000 streams, and what their events cost.
    pub async fn memory(&self, bench: &Bench, round: u32) -> Record {
        let mut record = self.record(round, MEMORY);
        let was_idle = machine::idle(bench.cores, bench.idle_wait).await;
        record.set("was_idle", f64::from(u8::from(was_idle)));
        sleep(MEMORY_REST).await;
        let idle = resident_bytes(&self.processes()) as f64;
        let plan = cells::memory_plan();
        let load = Load::start(bench.load(), self.target, plan);
        let tally = load.tally.clone();
        sleep(MEMORY_RAMP).await;
        let processes = self.processes();
        let begin = Moment::now(&processes, 0, read(&tally.events));
        tally.measure(true);
        sleep(MEMORY_MEASURED.mul_f64(bench.time)).await;
        tally.measure(false);
        let end = Moment::now(&processes, 0, read(&tally.events));
        let full = resident_bytes(&processes) as f64;
        let open = read(&bench.mock.accounts.open_streams) as f64;
        load.stop(Duration::ZERO).await;
        sleep(MEMORY_REST).await;
        let after = resident_bytes(&self.processes()) as f64;

        let cpu_us = end.cpu.saturating_sub(begin.cpu) as f64 / 1e3;
        record.set("idle_mib", idle / MIB);
        record.set("full_mib", full / MIB);
        record.set("after_mib", after / MIB);
        record.set("open_streams", open);
        record.set("kib_per_stream", (full - idle) / 1024.0 / open);
        record.set("cpu_us_per_event", cpu_us / end.events.saturating_sub(begin.events) as f64);
        record.set("cpu_share", cpu_us / 1e6 / (end.at.saturating_sub(begin.at) as f64 / 1e9));
        record.set("failed", read(&tally.failed) as f64);
        record.set("wrong", read(&tally.wrong) as f64);
        let mut samples = tally.take_samples();
        if let Some(delay) = quantile(&mut samples.event_nanos, 0.99) {
            record.set("event_p99_us", delay as f64 / 1e3);
        }
        if open < plan.connections as f64 {
            record.problem = Some(format!("{open} of {} streams were open", plan.connections));
        }
        record
    }

    /// What a proxy keeps of streams that nobody reads, and how much decode could write of them.
    ///
    /// # Errors
    /// When the streams cannot be asked for.
    pub async fn slow(&self, bench: &Bench, round: u32) -> anyhow::Result<Record> {
        let mut record = self.record(round, SLOW);
        let begin = resident_bytes(&self.processes());
        let written = || read(&bench.mock.accounts.event_bytes);
        let written_before = written();
        let mut readers = Vec::new();
        for _ in 0..SLOW_READERS {
            let reader = SlowReader::start(self.target.address, SLOW_STREAM);
            readers.push(bench.load().spawn(reader).await.context("the load ended")??);
        }
        let (mut most, mut last, mut still_since) = (begin, written(), now_nanos());
        let begun = now_nanos();
        while seconds_since(still_since) < SLOW_STILL.as_secs_f64() && seconds_since(begun) < SLOW_BOUND.as_secs_f64() {
            sleep(Duration::from_millis(20)).await;
            most = most.max(resident_bytes(&self.processes()));
            let now = written();
            if now != last {
                (last, still_since) = (now, now_nanos());
            }
        }
        record.set("growth_mb", most.saturating_sub(begin) as f64 / 1e6);
        record.set("written_mb", last.saturating_sub(written_before) as f64 / 1e6);
        record.set("held_after_seconds", seconds_since(begun) - seconds_since(still_since));
        // Then they read: what was held back must all come.
        let mut whole = 0;
        for reader in readers {
            let reading = bench.load().spawn(tokio::time::timeout(SLOW_BOUND, reader.read()));
            match reading.await.context("the load ended")? {
                Ok(Ok(true)) => whole += 1,
                Ok(Ok(false)) => record.problem = Some("a stream was not what was asked for".to_owned()),
                Ok(Err(error)) => record.problem = Some(format!("{error:#}")),
                Err(_) => record.problem = Some("a stream did not come to its end".to_owned()),
            }
        }
        record.set("whole_streams", f64::from(whole));
        record.set("failed", SLOW_READERS as f64 - f64::from(whole));
        Ok(record)
    }
}

/// What is known at a moment.
struct Moment {
    at: u64,
    cpu: u64,
    own: u64,
    requests: u64,
    events: u64,
    busy: Vec<f64>,
}

impl Moment {
    fn now(processes: &[i32], requests: u64, events: u64) -> Self {
        let own = i32::try_from(std::process::id()).map(|id| cpu_nanos(&[id])).unwrap_or(0);
        Self { busy: busy_seconds(), own, cpu: cpu_nanos(processes), at: now_nanos(), requests, events }
    }

    fn busy(&self, core: usize) -> f64 {
        self.busy.get(core).copied().unwrap_or(0.0)
    }
}

/// How many requests the engine saw, and how many of them were part of a hand-over.
struct Handed {
    decodes: u64,
    from_remote: u64,
    for_remote: u64,
}

impl Handed {
    fn of(mock: &Mock) -> Self {
        let accounts = &mock.accounts;
        Self {
            decodes: read(&accounts.decodes),
            from_remote: read(&accounts.decodes_from_remote),
            for_remote: read(&accounts.prefills_for_remote),
        }
    }

    fn set(&self, mock: &Mock, record: &mut Record) {
        let now = Self::of(mock);
        record.set("decodes", (now.decodes - self.decodes) as f64);
        record.set("decodes_from_remote", (now.from_remote - self.from_remote) as f64);
        record.set("prefills_for_remote", (now.for_remote - self.for_remote) as f64);
    }
}
