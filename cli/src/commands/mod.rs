//! What each verb does.

pub mod autoscale;
pub mod canary;
pub mod change;
pub mod delete;
pub mod deploy;
pub mod edit;
pub mod explain;
pub mod freeze;
pub mod list;
pub mod local;
pub mod orphans;
pub mod plan;
pub mod refresh;
pub mod regions;
pub mod setup;
pub mod status;

use gco_runtime::clock::SystemClock;
use gco_runtime::environment::Environment;

use crate::arguments::{CommonFlags, RegionChange, Verb};
use crate::connect::{Connection, Selection};
use crate::failure::Failure;
use crate::output::Output;

/// What every verb works with.
#[derive(Debug)]
pub struct Context<'x, 'a, 'console> {
    /// The process environment, or a made-up one.
    pub environment: &'x Environment,
    /// Flags that every verb has.
    pub common: &'x CommonFlags,
    /// Where results go.
    pub output: &'x mut Output<'a, 'console>,
    /// The time.
    pub clock: SystemClock,
}

impl<'x, 'a, 'console> Context<'x, 'a, 'console> {
    /// A context with the machine's clock.
    pub fn new(environment: &'x Environment, common: &'x CommonFlags, output: &'x mut Output<'a, 'console>) -> Self {
        Self { environment, common, output, clock: SystemClock }
    }

    /// Which table the flags and the environment ask for.
    ///
    /// # Errors
    /// A wrong flag or variable, or an absent local instance.
    pub fn selection(&self) -> Result<Selection, Failure> {
        Selection::of(self.common, self.environment)
    }

    /// Opens the table that the flags and the environment ask for.
    ///
    /// # Errors
    /// As [`Context::selection`], and when the table cannot be opened.
    pub async fn connect(&self) -> Result<Connection, Failure> {
        self.selection()?.open().await
    }
}

/// Does what one verb asks for.
///
/// # Errors
/// Whatever kept it from being done.
pub async fn execute(verb: Verb, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    match verb {
        Verb::Deploy(given) => deploy::execute(&given, context).await,
        Verb::List(given) => list::execute(&given, context).await,
        Verb::Status(given) => status::execute(&given, context).await,
        Verb::Plan(given) => plan::execute(&given, context).await,
        Verb::Explain(given) => explain::execute(&given, context).await,
        Verb::Scale(given) => edit::scale(&given, context).await,
        Verb::Autoscale(given) => autoscale::execute(&given, context).await,
        Verb::UpdateImage(given) => edit::update_image(&given, context).await,
        Verb::Set(given) => change::set(&given, context).await,
        Verb::Edit(given) => change::edit(&given, context).await,
        Verb::Undo(given) => change::undo(&given, context).await,
        Verb::Stop(given) => edit::stop(&given, context).await,
        Verb::Start(given) => edit::start(&given, context).await,
        Verb::Canary(given) => canary::set(&given, context).await,
        Verb::Promote(given) => canary::promote(&given, context).await,
        Verb::Rollback(given) => canary::roll_back(&given, context).await,
        Verb::Regions { change: RegionChange::Add(given) } => regions::add(&given, context).await,
        Verb::Regions { change: RegionChange::Remove(given) } => regions::remove(&given, context).await,
        Verb::Delete(given) => delete::execute(&given, context).await,
        Verb::Orphans(given) => orphans::execute(&given, context).await,
        Verb::Pause(given) => edit::set_paused(&given, true, context).await,
        Verb::Refresh(given) => refresh::execute(&given, context).await,
        Verb::Resume(given) => edit::set_paused(&given, false, context).await,
        Verb::Freeze(given) => freeze::execute(&given, true, context).await,
        Verb::Unfreeze(given) => freeze::execute(&given, false, context).await,
        Verb::Setup(given) => setup::execute(&given, context).await,
    }
}
