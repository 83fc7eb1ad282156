//! The old leader's writers: each reads an object, writes it under the old term, and goes on to the next, without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::calls::{Caller, Reply};
use super::kinds::{Deed, Target};

/// What became of one write.
#[derive(Clone, Debug)]
pub struct Deeded {
    /// What it was meant to be; a delete is written down twice, as its stamp and as itself.
    pub deed: Deed,
    /// Plural with group.
    pub resource: &'static str,
    /// Name of the object.
    pub name: String,
    /// The object's identity, as the writer saw it or as the server answered.
    pub uid: String,
    /// Version after the write; of a delete, before it.
    pub version: u64,
    /// Whether the server did it.
    pub accepted: bool,
    /// Which of the fence's policies refused it, when one did.
    pub refused_by: Option<&'static str>,
    /// Whether it was sent after the new leader's Lease was acknowledged.
    pub after_lease: bool,
}

/// What the writers of one take-over share.
#[derive(Debug, Default)]
pub struct Signals {
    /// The new leader's Lease was acknowledged.
    pub lease_taken: AtomicBool,
    /// Enough.
    pub stop: AtomicBool,
    /// Complete rounds over all writes, summed over the writers, by writer.
    pub rounds: [AtomicU64; WRITERS],
}

/// How many write at once.
pub const WRITERS: usize = 3;

/// One writer, until it is told to stop. It alternates between the servers.
///
/// # Errors
/// When a server does not answer.
pub async fn write(
    number: usize,
    servers: Vec<Caller>,
    deeds: Vec<(Deed, Target)>,
    round: String,
    term: u64,
    signals: Arc<Signals>,
) -> anyhow::Result<Vec<Deeded>> {
    let mut done = Vec::new();
    let mut count = 0_usize;
    loop {
        // Each begins elsewhere, so that all are at different objects.
        let offset = number * deeds.len() / WRITERS;
        for index in 0..deeds.len() {
            if signals.stop.load(Ordering::Acquire) {
                return Ok(done);
            }
            let (deed, target) = &deeds[(index + offset) % deeds.len()];
            let server = &servers[(count + number) % servers.len()];
            count += 1;
            let name = format!("{round}-{}", deed.letter());
            let mark = format!("old-{number}-{count}");
            let writer = Writer { server, target, name: &name, term, mark: &mark, signals: &signals };
            writer.carry_out(*deed, &mut done).await?;
        }
        signals.rounds[number].fetch_add(1, Ordering::AcqRel);
    }
}

struct Writer<'a> {
    server: &'a Caller,
    target: &'a Target,
    name: &'a str,
    term: u64,
    mark: &'a str,
    signals: &'a Signals,
}

impl Writer<'_> {
    async fn carry_out(&self, deed: Deed, done: &mut Vec<Deeded>) -> anyhow::Result<()> {
        if deed == Deed::Create {
            let after_lease = self.after_lease();
            let reply = self.server.create(self.target, &self.object(), "").await?;
            done.push(self.deeded(deed, &reply, reply.uid(), reply.version(), after_lease));
            return Ok(());
        }
        // As fresh as a cache can be: what the server has at this moment.
        let seen = self.server.get(self.target, self.name).await?;
        if !seen.is_success() || seen.is_terminating() {
            return Ok(());
        }
        let after_lease = self.after_lease();
        if deed == Deed::Update {
            let mut body = seen.body.clone();
            body["metadata"]["annotations"]["gco.io/leader-term"] = serde_json::json!(self.term.to_string());
            body["metadata"]["annotations"]["suite/mark"] = serde_json::json!(self.mark);
            let reply = self.server.update(self.target, self.name, &body).await?;
            done.push(self.deeded(deed, &reply, seen.uid(), reply.version(), after_lease));
            return Ok(());
        }
        let stamped = self.server.stamp(self.target, self.name, &seen, self.term, self.mark).await?;
        done.push(self.deeded(Deed::Stamp, &stamped, seen.uid(), stamped.version(), after_lease));
        if deed == Deed::Delete && stamped.is_success() {
            let after_lease = self.after_lease();
            let reply = self.server.delete(self.target, self.name, &stamped, "Foreground").await?;
            done.push(self.deeded(deed, &reply, seen.uid(), stamped.version(), after_lease));
        }
        Ok(())
    }

    fn object(&self) -> serde_json::Value {
        self.target.object(self.name, self.term, self.mark)
    }

    fn after_lease(&self) -> bool {
        self.signals.lease_taken.load(Ordering::Acquire)
    }

    fn deeded(&self, deed: Deed, reply: &Reply, uid: String, version: u64, after_lease: bool) -> Deeded {
        Deeded {
            deed,
            resource: self.target.resource,
            name: self.name.to_owned(),
            uid,
            version,
            accepted: reply.is_success(),
            refused_by: ["gco-term-order", "gco-term-lease"].into_iter().find(|policy| reply.is_refused_by(policy)),
            after_lease,
        }
    }
}
