//! What went through the proxy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::decision::DecisionKind;
use super::facts::RequestFacts;

/// One request and what became of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The request.
    pub request: Arc<RequestFacts>,
    /// What was decided.
    pub decision: DecisionKind,
    /// The status that the server answered with; `None` while it has not, or was not asked.
    pub upstream_status: Option<u16>,
    /// The status that the client was answered with; `None` when it has no answer (yet).
    pub client_status: Option<u16>,
    /// Whether the proxy has done with it, but for a body that still flows.
    pub finished: bool,
    /// What went wrong between proxy and server.
    pub error: Option<String>,
}

impl Exchange {
    /// One short line for messages.
    pub fn summary(&self) -> String {
        let shown = |status: Option<u16>| status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        let (server, client) = (shown(self.upstream_status), shown(self.client_status));
        let state = if self.finished { "" } else { ", going on" };
        format!("{} {:?} server {server} client {client}{state}", self.request.summary(), self.decision)
    }
}

/// A place in the record, to read from there on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyMark(pub(super) u64);

#[derive(Debug, Default)]
pub(super) struct Record {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The sequence number of the first exchange that is kept.
    first: u64,
    exchanges: Vec<Exchange>,
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an exchange; `make` is given its sequence number.
    pub(super) fn begin(&self, make: impl FnOnce(u64) -> (Arc<RequestFacts>, DecisionKind)) -> u64 {
        let mut inner = self.lock();
        let sequence = inner.first + inner.exchanges.len() as u64;
        let (request, decision) = make(sequence);
        inner.exchanges.push(Exchange {
            request,
            decision,
            upstream_status: None,
            client_status: None,
            finished: false,
            error: None,
        });
        sequence
    }

    pub(super) fn change(&self, sequence: u64, change: impl FnOnce(&mut Exchange)) {
        let mut inner = self.lock();
        let index = sequence.checked_sub(inner.first).and_then(|index| usize::try_from(index).ok());
        if let Some(exchange) = index.and_then(|index| inner.exchanges.get_mut(index)) {
            change(exchange);
        }
    }

    pub(super) fn mark(&self) -> ProxyMark {
        let inner = self.lock();
        ProxyMark(inner.first + inner.exchanges.len() as u64)
    }

    pub(super) fn since(&self, mark: ProxyMark) -> Vec<Exchange> {
        let inner = self.lock();
        let skipped = usize::try_from(mark.0.saturating_sub(inner.first)).unwrap_or(usize::MAX);
        inner.exchanges.iter().skip(skipped).cloned().collect()
    }

    pub(super) fn forget(&self) {
        let mut inner = self.lock();
        inner.first += inner.exchanges.len() as u64;
        inner.exchanges.clear();
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn facts(sequence: u64) -> Arc<RequestFacts> {
        Arc::new(RequestFacts {
            sequence,
            method: Method::GET,
            path: "/".to_owned(),
            query: String::new(),
            headers: http::HeaderMap::new(),
            body: bytes::Bytes::new(),
            body_is_complete: true,
            received_at: jiff::Timestamp::UNIX_EPOCH,
            received_boot: Default::default(),
            dynamodb_operation: None,
            kubernetes: None,
        })
    }

    #[test]
    fn sequence_numbers_and_marks_go_on_after_forgetting() {
        let record = Record::default();
        let begin = || record.begin(|sequence| (facts(sequence), DecisionKind::Forward));
        assert_eq!((begin(), begin()), (0, 1));
        let mark = record.mark();
        assert_eq!(begin(), 2);
        assert_eq!(record.since(mark).len(), 1);
        record.forget();
        assert!(record.since(ProxyMark::default()).is_empty());
        record.change(1, |exchange| exchange.finished = true);
        assert_eq!(begin(), 3);
        record.change(3, |exchange| exchange.client_status = Some(200));
        let after = record.since(mark);
        assert_eq!((after.len(), after[0].client_status), (1, Some(200)));
        assert_eq!(after[0].summary(), "#3 GET / Forward server - client 200, going on");
    }
}
