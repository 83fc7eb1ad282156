//! Proxies before a monitor's two servers, and traps in them: the n-th request of a kind stops or kills the monitor at a
//! known moment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use gco_bed::rewriting_proxy::{Decision, Gate, RequestFacts, RewritingProxy, Upstream};
use gco_bed::wait::{self, WaitError};

use super::Region;

/// Which requests a trap counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Writes to objects and to rows. Not the Lease and the heartbeat: these come by the clock.
    Writes,
    /// Reads of objects and of rows; not watches, the Lease and the heartbeat.
    Reads,
    /// Both.
    All,
}

impl Class {
    /// Whether a request is counted.
    #[must_use]
    pub fn counts(self, request: &RequestFacts) -> bool {
        let by_the_clock = match &request.kubernetes {
            // Events are written beside the work, whenever there is time.
            Some(kubernetes) => {
                let aside = ["leases", "events"].contains(&kubernetes.resource.as_str());
                aside || kubernetes.dry_run || request.is_watch()
            }
            None => match &request.dynamodb_operation {
                Some(_) => is_of_the_second_table(request),
                None => true,
            },
        };
        !by_the_clock
            && match self {
                Self::Writes => request.is_write(),
                Self::Reads => !request.is_write(),
                Self::All => true,
            }
    }
}

/// Whether a request is about the regions' table.
#[must_use]
pub fn is_of_the_second_table(request: &RequestFacts) -> bool {
    let name = request.json().and_then(|body| body.get("TableName")?.as_str().map(str::to_owned));
    name.is_some_and(|name| name.ends_with("-regions"))
}

/// When the trap springs, relative to what the server does with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request is on its way.
    Before,
    /// The server has done it; the answer is on its way.
    After,
    /// The request gets lost: the server never sees it.
    Never,
}

/// A request that a trap counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Its number, from 1.
    pub number: usize,
    /// What it was, in a few words.
    pub summary: String,
}

type Action = Box<dyn Fn() + Send + Sync>;

/// Counts requests, and does something at one of them.
pub struct Trap {
    class: Class,
    springs_at: Option<(usize, Phase)>,
    action: Action,
    gate: Gate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    armed: bool,
    counted: Vec<Counted>,
    sprung: Option<Counted>,
}

impl std::fmt::Debug for Trap {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Trap").field("springs_at", &self.springs_at).finish_non_exhaustive()
    }
}

impl Trap {
    /// A trap that only counts.
    #[must_use]
    pub fn counting(class: Class) -> Arc<Self> {
        Self::new(class, None, Box::new(|| {}))
    }

    /// A trap that does `action` when request `number` (from 1) of its kind comes in, and holds that request.
    #[must_use]
    pub fn at(class: Class, number: usize, phase: Phase, action: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Self::new(class, Some((number, phase)), Box::new(action))
    }

    fn new(class: Class, springs_at: Option<(usize, Phase)>, action: Action) -> Arc<Self> {
        Arc::new(Self { class, springs_at, action, gate: Gate::new(), state: Mutex::default() })
    }

    /// Lets the trap see what passes these proxies. It counts from [`Trap::arm`] on.
    pub fn set_in(self: &Arc<Self>, proxies: &[&RewritingProxy]) {
        for proxy in proxies {
            let trap = self.clone();
            proxy.set_hook(move |request| trap.decide(request));
        }
    }

    /// Counts from now on.
    pub fn arm(&self) {
        self.state().armed = true;
    }

    /// Counts no longer.
    pub fn disarm(&self) {
        self.state().armed = false;
    }

    /// What was counted so far.
    #[must_use]
    pub fn counted(&self) -> Vec<Counted> {
        self.state().counted.clone()
    }

    /// The request at which it sprang.
    #[must_use]
    pub fn sprung(&self) -> Option<Counted> {
        self.state().sprung.clone()
    }

    /// Waits until it springs.
    ///
    /// # Errors
    /// When it does not within the bound; then with what it counted.
    pub async fn wait_until_sprung(&self, bound: Duration) -> Result<Counted, WaitError> {
        wait::until(&format!("{self:?} to spring"), bound, || {
            std::future::ready(self.sprung().ok_or_else(|| format!("{:?}", self.counted())))
        })
        .await
    }

    /// Lets the held request, or its answer, go on.
    pub fn release(&self) {
        self.gate.open();
    }

    fn decide(&self, request: &RequestFacts) -> Decision {
        if !self.class.counts(request) {
            return Decision::Forward;
        }
        let mut state = self.state();
        if !state.armed || state.sprung.is_some() {
            return Decision::Forward;
        }
        let counted = Counted { number: state.counted.len() + 1, summary: described(request) };
        state.counted.push(counted.clone());
        match self.springs_at {
            Some((number, phase)) if number == counted.number => {
                state.sprung = Some(counted);
                (self.action)();
                match phase {
                    Phase::Before => Decision::HoldThenForward(self.gate.clone()),
                    Phase::After => Decision::ForwardThenHold(self.gate.clone()),
                    Phase::Never => Decision::DropBefore,
                }
            }
            _ => Decision::Forward,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn described(request: &RequestFacts) -> String {
    match (&request.kubernetes, &request.dynamodb_operation) {
        (Some(kubernetes), _) => format!("{} {}/{}", kubernetes.verb, kubernetes.resource, kubernetes.name),
        (None, Some(operation)) => format!("{operation} {}", changed_places(request)).trim_end().to_owned(),
        (None, None) => format!("{} {}", request.method, request.path),
    }
}

/// What an update changes: its expression, with the placeholders of names replaced.
fn changed_places(request: &RequestFacts) -> String {
    let body = request.json().unwrap_or_default();
    let mut places = body["UpdateExpression"].as_str().unwrap_or_default().to_owned();
    let names = body["ExpressionAttributeNames"].as_object().into_iter().flatten();
    let mut names: Vec<(&str, &str)> =
        names.map(|(placeholder, name)| (placeholder.as_str(), name.as_str().unwrap_or_default())).collect();
    // `#n1` is the beginning of `#n10`.
    names.sort_by_key(|(placeholder, _)| std::cmp::Reverse(placeholder.len()));
    for (placeholder, name) in names {
        places = places.replace(placeholder, name);
    }
    places
}

impl Region {
    /// Starts a proxy before the API server.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn api_proxy(&self) -> anyhow::Result<RewritingProxy> {
        let plane = self.plane().control_plane();
        let path = plane.certificate_authority_path();
        let certificate_authorities = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let address = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, plane.port()));
        RewritingProxy::start(Upstream::Https { address, certificate_authorities }).await
    }

    /// Starts a proxy before the table server.
    ///
    /// # Errors
    /// When the table is a file, or the proxy cannot be started.
    pub async fn table_proxy(&self) -> anyhow::Result<RewritingProxy> {
        let address = self.table().address().context("this region's table is a file: nothing can stand before it")?;
        RewritingProxy::start(Upstream::Http { address }).await
    }
}
