//! One transition behind a proxy that loses, delays and refuses, and the truth about what became of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::rewriting_proxy::{Answer, Decision, Exchange, Gate, RequestFacts, RewritingProxy};
use gco_bed::table_server::TableServer;
use gco_bed::wait;
use gco_store::table::{Consistency, ErrorCategory, Outcome, Table, TableError};
use gco_store::transition::Transition;
use gco_store::wire::{Item, Value};

use super::backends::{Times, connect};
use super::reference::{Expected, Reference};
use super::scenarios::{Kind, Scenarios, desired_state};
use super::sequence::difference;

/// How long the proxy's record may take to show what is waited for.
const BOUND: Duration = Duration::from_secs(30);

/// What happens to the first writing request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Refused as too fast.
    Throttled,
    /// Answered 500, not done.
    ErrorBefore,
    /// The connection closes, not done.
    DroppedBefore,
    /// Done, answered 500.
    ErrorAfter,
    /// Done, the connection closes.
    DroppedAfter,
    /// Done, the answer comes after the client has given up.
    AnswerHeld,
    /// It reaches the server only after the client has given up, looked, and finished.
    WriteLate,
}

/// Every fault.
pub const FAULTS: [Fault; 7] = [
    Fault::Throttled,
    Fault::ErrorBefore,
    Fault::DroppedBefore,
    Fault::ErrorAfter,
    Fault::DroppedAfter,
    Fault::AnswerHeld,
    Fault::WriteLate,
];

impl Fault {
    /// Whether the server does the faulted request.
    #[must_use]
    pub fn is_after(self) -> bool {
        matches!(self, Self::ErrorAfter | Self::DroppedAfter | Self::AnswerHeld)
    }

    /// Whether the client runs into its time-out.
    #[must_use]
    pub fn needs_time_out(self) -> bool {
        matches!(self, Self::AnswerHeld | Self::WriteLate)
    }

    fn decision(self, gate: &Gate) -> Decision {
        match self {
            Self::Throttled => Decision::AnswerInstead(Answer::dynamodb_throttled()),
            Self::ErrorBefore => Decision::AnswerInstead(Answer::dynamodb_internal_error()),
            Self::DroppedBefore => Decision::DropBefore,
            Self::ErrorAfter => Decision::rewrite(|_| Answer::dynamodb_internal_error()),
            Self::DroppedAfter => Decision::ForwardThenDrop,
            Self::AnswerHeld => Decision::ForwardThenHold(gate.clone()),
            Self::WriteLate => Decision::HoldThenForward(gate.clone()),
        }
    }

    /// Whether the fault has done its work on this exchange, so that another writer comes after it.
    fn has_struck(self, exchange: &Exchange) -> bool {
        match self {
            Self::Throttled | Self::ErrorBefore | Self::DroppedBefore => exchange.finished,
            Self::ErrorAfter | Self::DroppedAfter | Self::AnswerHeld => exchange.upstream_status.is_some(),
            Self::WriteLate => true,
        }
    }
}

/// A table server behind a proxy, and a way past the proxy.
#[derive(Debug)]
pub struct FaultBed {
    /// The proxy.
    pub proxy: RewritingProxy,
    /// The table past the proxy.
    pub direct: Arc<dyn Table>,
    /// The table through the proxy, patient.
    pub patient: Arc<dyn Table>,
    /// The table through the proxy, with a short time-out for one request.
    pub hasty: Arc<dyn Table>,
}

impl FaultBed {
    /// The shortest time-out of a request that a busy machine's server still keeps.
    pub const HASTY: Times = Times { call: Duration::from_millis(700), total: Duration::from_secs(20) };

    /// A proxy before the table `name` of a server; the table is made when it is not there.
    ///
    /// # Errors
    /// A proxy that does not start, or a table that cannot be made.
    pub async fn new(server: &TableServer, name: &str) -> anyhow::Result<Self> {
        let proxy = RewritingProxy::start(server.upstream()).await?;
        let direct = connect(&server.url(), name, Times::PATIENT).await?;
        direct.create_tables().await?;
        let patient = connect(&proxy.url(), name, Times::PATIENT).await?;
        let hasty = connect(&proxy.url(), name, Self::HASTY).await?;
        Ok(Self { proxy, direct: Arc::new(direct), patient: Arc::new(patient), hasty: Arc::new(hasty) })
    }

    /// Executes transitions past the proxy; each must be applied.
    ///
    /// # Errors
    /// One that was not.
    pub async fn prepare(&self, history: &[Transition]) -> anyhow::Result<Reference> {
        let mut reference = Reference::default();
        for transition in history {
            let outcome = self.direct.execute(transition).await?;
            let expected = reference.execute(transition);
            ensure!(
                matches!((&outcome, &expected), (Outcome::Applied(found), Expected::Applied(row)) if found == row),
                "preparing: {outcome:?} instead of {expected:?}"
            );
        }
        Ok(reference)
    }
}

/// What the case came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// Applied.
    Applied,
    /// Refused.
    Refused,
    /// Certainly not applied, for now.
    Failed,
    /// Not known.
    Unknown,
}

/// One case, run and judged.
#[derive(Clone, Debug)]
pub struct Case {
    /// What the client was told.
    pub told: Told,
    /// Writing requests that the client sent.
    pub writes: usize,
    /// Reading requests that the client sent.
    pub reads: usize,
}

/// Runs a transition of a kind under a fault, with or without another writer between the fault and the client's next
/// request, and judges what the client was told.
///
/// # Errors
/// An outcome that is not true, a second effect, or a bed that did not do as asked.
pub async fn run(bed: &FaultBed, name: &str, kind: Kind, fault: Fault, meddled: bool) -> anyhow::Result<Case> {
    let mut scenarios = Scenarios::new(name, 1);
    let history = scenarios.history(kind)?;
    let before = bed.prepare(&history).await?;
    let transition = scenarios.transition(kind, before.row(name))?;

    let (fault_gate, between) = (Gate::new(), Gate::new());
    let mark = bed.proxy.mark();
    bed.proxy.once(RequestFacts::is_write, fault.decision(&fault_gate));
    if meddled {
        bed.proxy.once(|_| true, Decision::HoldThenForward(between.clone()));
    }
    let table = if fault.needs_time_out() { &bed.hasty } else { &bed.patient };
    let meddling = async {
        if !meddled {
            return anyhow::Ok(None);
        }
        let struck = |exchange: &Exchange| exchange.request.is_write() && fault.has_struck(exchange);
        bed.proxy.wait_for("the fault", BOUND, mark, struck).await?;
        let row = bed.direct.get(name, Consistency::Strong).await?;
        let other = scenarios.meddle(kind, row.as_ref())?;
        let outcome = bed.direct.execute(&other).await?;
        ensure!(matches!(outcome, Outcome::Applied(_)), "the other writer: {outcome:?}");
        between.open();
        Ok(Some(other))
    };
    let (outcome, other) = tokio::join!(table.execute(&transition), meddling);
    let other = other?;
    fault_gate.open();
    bed.proxy.pass_everything();
    let exchanges = settled(&bed.proxy, mark).await?;

    let writes: Vec<_> = exchanges.iter().filter(|exchange| exchange.request.is_write()).collect();
    let effects = writes.iter().filter(|exchange| exchange.upstream_status == Some(200)).count();
    let row = bed.direct.get(name, Consistency::Strong).await?;
    let log = || exchanges.iter().map(Exchange::summary).collect::<Vec<_>>().join("; ");
    let told = truth(&outcome, effects, other.is_some()).with_context(log)?;
    replay(&before, &transition, effects, other.as_ref(), fault.is_after(), row.as_ref()).with_context(log)?;
    if other.is_none() {
        let answered = matches!(&outcome, Ok(Outcome::Applied(answer)) if *answer == row);
        ensure!(answered, "nobody else wrote, and the client was told: {}; {}", in_short(&outcome), log());
    }
    Ok(Case { told, writes: writes.len(), reads: exchanges.len() - writes.len() })
}

/// Waits until every request since the mark has been dealt with, late ones included.
///
/// # Errors
/// When one is not.
pub async fn settled(
    proxy: &RewritingProxy,
    mark: gco_bed::rewriting_proxy::ProxyMark,
) -> anyhow::Result<Vec<Exchange>> {
    let all = wait::until("all requests to be dealt with", BOUND, || {
        let exchanges = proxy.exchanges_since(mark);
        let open: Vec<_> = exchanges.iter().filter(|exchange| !is_settled(exchange)).map(Exchange::summary).collect();
        std::future::ready(if open.is_empty() { Ok(exchanges) } else { Err(open.join("; ")) })
    });
    Ok(all.await?)
}

/// Whether nothing more can come of it. A request that was passed on reaches the server even when its client is gone.
fn is_settled(exchange: &Exchange) -> bool {
    use gco_bed::rewriting_proxy::DecisionKind;
    let passed_on = !matches!(exchange.decision, DecisionKind::AnswerInstead | DecisionKind::DropBefore);
    let answered = exchange.upstream_status.is_some() || exchange.error.is_some();
    if passed_on { answered } else { exchange.finished }
}

fn in_short(outcome: &Result<Outcome, TableError>) -> String {
    let row = |row: &Option<Item>| {
        let version = row.as_ref().and_then(|row| row.get("updated_at")).and_then(Value::as_str).unwrap_or("none");
        format!("{} of version {version}", desired_state(row.as_ref()))
    };
    match outcome {
        Ok(Outcome::Applied(applied)) => format!("applied, row {}", row(applied)),
        Ok(Outcome::Refused(refused)) => format!("refused, row {}", row(refused)),
        Err(error) => format!("{}: {error}", error.category.as_str()),
    }
}

/// Judges what the client was told by the number of times that the server did its write.
fn truth(outcome: &Result<Outcome, TableError>, effects: usize, meddled: bool) -> anyhow::Result<Told> {
    let said = in_short(outcome);
    ensure!(effects <= 1, "the write took effect {effects} times; the client was told: {said}");
    let told = match outcome {
        Ok(Outcome::Applied(_)) => Told::Applied,
        Ok(Outcome::Refused(_)) => Told::Refused,
        Err(error) if error.category == ErrorCategory::Unknown => Told::Unknown,
        Err(error) if error.category.retryable() => Told::Failed,
        Err(error) => anyhow::bail!("failed as {}: {error}", error.category.as_str()),
    };
    let true_to_the_row = match told {
        Told::Applied => effects == 1,
        Told::Refused | Told::Failed => effects == 0,
        Told::Unknown => meddled,
    };
    ensure!(
        true_to_the_row,
        "the client was told: {said}; the write took effect {effects} times; others wrote: {meddled}"
    );
    Ok(told)
}

/// The row must be what the reference gives for the writes that took effect, each once, in their order.
fn replay(
    before: &Reference,
    transition: &Transition,
    effects: usize,
    other: Option<&Transition>,
    ours_first: bool,
    row: Option<&Item>,
) -> anyhow::Result<()> {
    let ours = (effects == 1).then_some(transition);
    let order = if ours_first { [ours, other] } else { [other, ours] };
    let mut reference = before.clone();
    for write in order.into_iter().flatten() {
        let expected = reference.execute(write);
        ensure!(
            matches!(expected, Expected::Applied(_)),
            "{:?} cannot have taken effect: {expected:?}",
            write.operation
        );
    }
    let expected = reference.row(&transition.name);
    ensure!(expected == row, "the row is not what its writes make of it: {}", difference(expected, row));
    Ok(())
}
