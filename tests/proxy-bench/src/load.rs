//! The load generator: connections that are kept, each with one request at a time, in a closed loop or at a fixed rate.

use std::io::Result;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use memchr::memmem;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clock::now_nanos;
use crate::event::{DONE, EventTimes, answer_id};
use crate::http::{Head, bad};
use crate::mock::read;
use crate::tag::{TICKET_DIGITS, Tag, write_digits};

/// Room that an answer is read into.
const READ_BYTES: usize = 64 * 1024;

/// How long a request may take; longer is an error.
const LONGEST_REQUEST: Duration = Duration::from_secs(20);

/// How long a connection waits after an error, so that a peer that is down is not asked in a tight loop.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// Where the load goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The port that clients talk to.
    pub address: SocketAddr,
    /// For a client that does both hops by itself: where it asks prefill first.
    pub prefill: Option<SocketAddr>,
}

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each connection sends the next request when it has the answer.
    Closed,
    /// So many requests per second over all connections, whether answers came or not; time counts from when one was due.
    Rate(u32),
    /// One request per connection, and then no more.
    Once,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Connections at the same time.
    pub connections: usize,
    /// How requests follow one another.
    pub pace: Pace,
    /// What the engine is told.
    pub tag: Tag,
    /// Bytes of a request's body, or a little more when that is less than its form needs.
    pub body_bytes: usize,
    /// Over how long the connections begin.
    pub stagger: Duration,
    /// Whether the time that each event took is kept.
    pub times_events: bool,
}

/// What was measured of single requests, in nanoseconds.
#[derive(Debug, Default)]
pub struct Samples {
    /// From the request's first byte (or when it was due) to the answer's last.
    pub total_nanos: Vec<u64>,
    /// The same to the first byte of the answer's body.
    pub first_nanos: Vec<u64>,
    /// From the engine's write of an event to its arrival.
    pub event_nanos: Vec<u64>,
}

/// What the connections did.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests with the answer that was asked for.
    pub good: AtomicU64,
    /// Requests with another: its status, its ticket or its count of events.
    pub wrong: AtomicU64,
    /// Requests without a whole answer.
    pub failed: AtomicU64,
    /// Events that came.
    pub events: AtomicU64,
    samples: Mutex<Samples>,
    last_problem: Mutex<Option<String>>,
    is_measuring: AtomicBool,
    is_stopping: AtomicBool,
    next_ticket: AtomicU64,
}

impl Tally {
    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says from when on single requests are measured, and from when on no longer.
    pub fn measure(&self, is_measuring: bool) {
        self.is_measuring.store(is_measuring, Relaxed);
    }

    /// Takes what was measured so far.
    pub fn take_samples(&self) -> Samples {
        std::mem::take(&mut *self.samples())
    }

    /// What went wrong last.
    pub fn last_problem(&self) -> Option<String> {
        self.last_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, account: &AtomicU64, problem: String) {
        account.fetch_add(1, Relaxed);
        *self.last_problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    }
}

/// Connections at work.
#[derive(Debug)]
pub struct Load {
    /// What they did.
    pub tally: Arc<Tally>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the connections on `runtime`.
    #[must_use]
    pub fn start(runtime: &Handle, target: Target, plan: Plan) -> Self {
        let tally = Arc::new(Tally::default());
        let (due, queue) = mpsc::unbounded_channel();
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let mut tasks = Vec::with_capacity(plan.connections + 1);
        let count = u32::try_from(plan.connections).unwrap_or(u32::MAX).max(1);
        for number in 0..plan.connections {
            let (tally, queue) = (tally.clone(), queue.clone());
            let begin = plan.stagger * u32::try_from(number).unwrap_or(0) / count;
            tasks.push(runtime.spawn(async move {
                if !begin.is_zero() {
                    tokio::time::sleep(begin).await;
                }
                let mut client = Client::new(target, &plan);
                while !tally.is_stopping.load(Relaxed) {
                    let begun = match plan.pace {
                        Pace::Closed | Pace::Once => now_nanos(),
                        Pace::Rate(_) => match queue.lock().await.recv().await {
                            Some(due) => due,
                            None => return,
                        },
                    };
                    client.ask(begun, &tally).await;
                    if plan.pace == Pace::Once {
                        return;
                    }
                }
            }));
        }
        if let Pace::Rate(per_second) = plan.pace {
            let tally = tally.clone();
            tasks.push(runtime.spawn(async move {
                let ticking = tally.clone();
                // A thread that is started here runs where the load runs. It ends with the load: nobody takes its ticks then.
                let run = move || {
                    if let Err(error) = tick(per_second, &due, &ticking) {
                        ticking.note(&ticking.failed, format!("the timer failed: {error:#}"));
                    }
                };
                if let Err(error) = std::thread::Builder::new().name("ticks".to_owned()).spawn(run) {
                    tally.note(&tally.failed, format!("no thread for the timer: {error}"));
                }
            }));
        }
        Self { tally, tasks }
    }

    /// Lets every connection finish its request, at most for `grace`; then closes those that have not.
    pub async fn stop(mut self, grace: Duration) {
        self.tally.is_stopping.store(true, Relaxed);
        let all = async {
            for task in &mut self.tasks {
                // One that waits for its turn at a fixed rate would never be told.
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(grace, all).await;
        for task in &self.tasks {
            task.abort();
        }
    }

    /// Waits until every connection has done what it was to do once.
    pub async fn finish(mut self) {
        for task in &mut self.tasks {
            let _ = task.await;
        }
    }
}

/// Says when requests are due. The runtime's own timer counts milliseconds, which is too coarse.
fn tick(per_second: u32, due: &mpsc::UnboundedSender<u64>, tally: &Tally) -> anyhow::Result<()> {
    let per_second = per_second.max(1);
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).context("it cannot be made")?;
    let period = TimeSpec::from_duration(Duration::from_secs(1) / per_second);
    timer.set(Expiration::Interval(period), TimerSetTimeFlags::empty()).context("it cannot be set")?;
    let begun = now_nanos();
    let period_nanos = 1_000_000_000 / u64::from(per_second);
    let mut count: u64 = 0;
    while !tally.is_stopping.load(Relaxed) {
        let mut expired = [0; 8];
        nix::unistd::read(&timer, &mut expired).context("it cannot be read")?;
        for _ in 0..u64::from_ne_bytes(expired) {
            count += 1;
            if due.send(begun + count * period_nanos).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A request with a place for its ticket.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    body_at: usize,
    ticket_at: usize,
}

impl Request {
    /// A completion whose body has these `members` behind the prompt.
    fn new(tag: &Tag, body_bytes: usize, members: &str) -> Self {
        let before = format!(r#"{{"model":"bench","prompt":"{tag}"#);
        let after = format!(r#"","temperature":0.7,"stream":{}{members}}}"#, tag.streams);
        let padding = body_bytes.saturating_sub(before.len() + after.len());
        let body = format!("{before}{}{after}", " word".repeat(padding.div_ceil(5)));
        let head = head(body.len());
        // The tag ends with the ticket and its closing mark.
        let ticket_at = head.len() + before.len() - 1 - TICKET_DIGITS;
        Self { bytes: format!("{head}{body}").into_bytes(), body_at: head.len(), ticket_at }
    }

    fn with(&mut self, ticket: u64) -> &[u8] {
        if let Some(place) = self.bytes.get_mut(self.ticket_at..self.ticket_at + TICKET_DIGITS) {
            write_digits(place, ticket);
        }
        &self.bytes
    }

    /// The same with one more member, behind the others.
    fn with_member(&mut self, ticket: u64, member: &[u8]) -> Vec<u8> {
        let body_at = self.body_at;
        let body = self.with(ticket).get(body_at..).unwrap_or_default();
        let open = body.strip_suffix(b"}").unwrap_or(body);
        let mut bytes = head(open.len() + member.len() + 2).into_bytes();
        bytes.reserve(open.len() + member.len() + 2);
        for part in [open, b",", member, b"}"] {
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

/// The head of a request with so long a body.
fn head(body_bytes: usize) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\naccept: */*\r\n\
         user-agent: gco-proxy-bench\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
}

/// One connection, with a second one to prefill when it does both hops.
struct Client {
    target: Target,
    tag: Tag,
    times_events: bool,
    stream: Option<TcpStream>,
    prefill: Option<TcpStream>,
    request: Request,
    for_prefill: Request,
    buffer: Vec<u8>,
    times: Vec<u64>,
}

/// What an answer was.
#[derive(Debug, Default)]
struct Answer {
    status: u16,
    first_at: u64,
    events: u64,
    is_ours: bool,
    is_done: bool,
    is_kept: bool,
}

impl Client {
    fn new(target: Target, plan: &Plan) -> Self {
        let prefill_tag = Tag { streams: false, ..plan.tag };
        let asks_for_parameters = r#","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}"#;
        Self {
            target,
            tag: plan.tag,
            times_events: plan.times_events,
            stream: None,
            prefill: None,
            request: Request::new(&plan.tag, plan.body_bytes, r#","max_tokens":16"#),
            for_prefill: Request::new(&prefill_tag, plan.body_bytes, asks_for_parameters),
            buffer: vec![0; READ_BYTES],
            times: Vec::new(),
        }
    }

    /// Sends one request and takes its answer.
    async fn ask(&mut self, begun: u64, tally: &Tally) {
        let ticket = tally.next_ticket.fetch_add(1, Relaxed);
        let asked = tokio::time::timeout(LONGEST_REQUEST, self.exchange(ticket, tally)).await;
        let ended = now_nanos();
        let answer = match asked {
            Ok(Ok(answer)) => answer,
            other => {
                (self.stream, self.prefill) = (None, None);
                let problem = other.map_or("took too long".to_owned(), |result| match result {
                    Ok(_) => String::new(),
                    Err(error) => error.to_string(),
                });
                tally.note(&tally.failed, problem);
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                return;
            }
        };
        if !answer.is_kept {
            self.stream = None;
        }
        let events = if self.tag.streams { u64::from(self.tag.events) } else { 0 };
        let is_right =
            answer.status == 200 && answer.is_ours && answer.events == events && answer.is_done == self.tag.streams;
        if !is_right {
            tally.note(&tally.wrong, format!("{answer:?}"));
            return;
        }
        tally.good.fetch_add(1, Relaxed);
        if tally.is_measuring.load(Relaxed) {
            let mut samples = tally.samples();
            samples.total_nanos.push(ended.saturating_sub(begun));
            samples.first_nanos.push(answer.first_at.saturating_sub(begun));
        }
    }

    async fn exchange(&mut self, ticket: u64, tally: &Tally) -> Result<Answer> {
        let mut with_parameters = None;
        if let Some(prefill) = self.target.prefill {
            let stream = match &mut self.prefill {
                Some(stream) => stream,
                empty => empty.insert(connect(prefill).await?),
            };
            stream.write_all(self.for_prefill.with(ticket)).await?;
            let mut body = Vec::new();
            let head = take(stream, &mut self.buffer, |piece| body.extend_from_slice(piece)).await?;
            if head.status() != 200 {
                return Err(bad("prefill refused"));
            }
            with_parameters = Some(self.request.with_member(ticket, parameters(&body)?));
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            empty => empty.insert(connect(self.target.address).await?),
        };
        match &with_parameters {
            Some(bytes) => stream.write_all(bytes).await?,
            None => stream.write_all(self.request.with(ticket)).await?,
        }

        let id = answer_id(ticket);
        let mut answer = Answer::default();
        let mut scanner = EventTimes::default();
        // A stream's end may be cut in two by the way it was read.
        let mut end = [0_u8; DONE.len()];
        let (tag, times, times_events) = (self.tag, &mut self.times, self.times_events);
        let head = take(stream, &mut self.buffer, |piece| {
            let now = if answer.first_at == 0 || times_events { now_nanos() } else { 0 };
            if answer.first_at == 0 {
                answer.first_at = now;
                answer.is_ours = memmem::find(piece, id.as_bytes()).is_some();
            }
            if !tag.streams {
                return;
            }
            let before = answer.events;
            times.clear();
            scanner.scan(piece, |written| {
                answer.events += 1;
                if times_events {
                    times.push(now.saturating_sub(written));
                }
            });
            tally.events.fetch_add(answer.events - before, Relaxed);
            if times_events && !times.is_empty() && tally.is_measuring.load(Relaxed) {
                tally.samples().event_nanos.extend_from_slice(times);
            }
            push_end(&mut end, piece);
        })
        .await?;
        answer.status = head.status();
        answer.is_kept = head.is_kept;
        answer.is_done = end == *DONE;
        Ok(answer)
    }
}

/// Keeps the last bytes of what came.
fn push_end(end: &mut [u8; DONE.len()], piece: &[u8]) {
    let length = end.len();
    if let Some(last) = piece.len().checked_sub(length).and_then(|at| piece.get(at..)) {
        end.copy_from_slice(last);
    } else {
        end.rotate_left(piece.len());
        if let Some(place) = end.get_mut(length - piece.len()..) {
            place.copy_from_slice(piece);
        }
    }
}

/// The member `kv_transfer_params` of the mock engine's answer, where it is the last one.
fn parameters(body: &[u8]) -> Result<&[u8]> {
    let at = memmem::find(body, b"\"kv_transfer_params\"").ok_or_else(|| bad("prefill gave no parameters"))?;
    Ok(body.get(at..body.len().saturating_sub(1)).unwrap_or_default())
}

async fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Takes one answer, giving every piece of its body to `body`.
async fn take(stream: &mut TcpStream, buffer: &mut [u8], mut body: impl FnMut(&[u8])) -> Result<Head> {
    let mut filled = 0;
    let mut head = loop {
        let room =
            buffer.get_mut(filled..).filter(|room| !room.is_empty()).ok_or_else(|| bad("the head is too long"))?;
        let count = stream.read(room).await?;
        if count == 0 {
            return Err(bad("the connection ended before the head"));
        }
        filled += count;
        if let Some(head) = Head::parse(buffer.get(..filled).unwrap_or_default(), true)? {
            break head;
        }
    };
    let mut is_whole = head.framing.feed(buffer.get(head.length..filled).unwrap_or_default(), &mut body)?;
    while !is_whole {
        let count = stream.read(buffer).await?;
        if count == 0 {
            return if head.framing == crate::http::Framing::UntilClose {
                Ok(head)
            } else {
                Err(bad("the connection ended within the body"))
            };
        }
        is_whole = head.framing.feed(buffer.get(..count).unwrap_or_default(), &mut body)?;
    }
    Ok(head)
}

/// A client that asks for a long stream and does not read it until it is told to.
#[derive(Debug)]
pub struct SlowReader {
    stream: TcpStream,
    tag: Tag,
}

impl SlowReader {
    /// Asks for the stream.
    ///
    /// # Errors
    /// When the peer cannot be reached.
    pub async fn start(address: SocketAddr, tag: Tag) -> anyhow::Result<Self> {
        let mut stream = connect(address).await.context("the peer cannot be reached")?;
        stream.write_all(Request::new(&tag, 0, r#","max_tokens":16"#).with(0)).await?;
        Ok(Self { stream, tag })
    }

    /// Reads it whole; whether it was.
    ///
    /// # Errors
    /// When it breaks off.
    pub async fn read(mut self) -> anyhow::Result<bool> {
        let mut scanner = EventTimes::default();
        let (mut events, mut end) = (0_u32, [0_u8; DONE.len()]);
        let mut buffer = vec![0; READ_BYTES];
        let head = take(&mut self.stream, &mut buffer, |piece| {
            scanner.scan(piece, |_| events += 1);
            push_end(&mut end, piece);
        })
        .await?;
        Ok(head.status() == 200 && events == self.tag.events && end == *DONE)
    }
}

/// Sends one request of `tag` through a target and says whether the answer was the right one.
///
/// # Errors
/// When it was not, with what came instead.
pub async fn probe(runtime: &Handle, target: Target, tag: Tag) -> std::result::Result<(), String> {
    let plan =
        Plan { connections: 1, pace: Pace::Once, tag, body_bytes: 0, stagger: Duration::ZERO, times_events: false };
    let load = Load::start(runtime, target, plan);
    let tally = load.tally.clone();
    load.finish().await;
    match read(&tally.good) {
        1 => Ok(()),
        _ => Err(tally.last_problem().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_json_of_the_size_that_was_asked_for_and_carries_its_ticket() {
        let mut request = Request::new(&Tag::stream(3, 200, 0), 1024, r#","max_tokens":16"#);
        let text = String::from_utf8(request.with(77).to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())));
        assert!((1024..1030).contains(&body.len()), "{}", body.len());
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&json["stream"], &json["max_tokens"]), (&true.into(), &16.into()));
        assert_eq!(Tag::find(body.as_bytes()), Ok(Tag { ticket: 77, ..Tag::stream(3, 200, 0) }));
    }

    #[test]
    fn a_member_is_added_behind_the_others() {
        let mut request = Request::new(&Tag::whole(), 0, "");
        let text = String::from_utf8(request.with_member(5, br#""kv_transfer_params":{"a":[1]}"#)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["kv_transfer_params"]["a"][0], 1);
        assert_eq!(Tag::find(body.as_bytes()).map(|tag| tag.ticket), Ok(5));
    }

    #[test]
    fn the_end_of_a_stream_is_known_wherever_it_is_cut() {
        let stream = b"data: {}\n\ndata: [DONE]\n\n";
        for cut in 0..=stream.len() {
            let mut end = [0; DONE.len()];
            push_end(&mut end, &stream[..cut]);
            push_end(&mut end, &stream[cut..]);
            assert_eq!(end, DONE, "cut at {cut}");
        }
    }
}
