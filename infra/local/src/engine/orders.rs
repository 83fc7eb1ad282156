//! Faults on request: what a suite tells a simulated engine to do wrong, over `PUT /simulated/orders`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// What is to go wrong from now on. Each PUT replaces all of it; `{}` puts everything right again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Orders {
    /// What happens to requests for completions.
    pub completions: Option<CompletionOrder>,
    /// To how many of them; to all when absent.
    pub times: Option<u64>,
    /// What the bootstrap server answers.
    pub query: Option<QueryOrder>,
    /// What happens to KV.
    pub transfer: Option<TransferOrder>,
    /// The status of `/health`.
    pub health: Option<u16>,
}

/// What happens to a request for a completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompletionOrder {
    /// It is refused with this status and an error object.
    Status(u16),
    /// It is looked at only after so many milliseconds.
    Delay(u64),
    /// It is never answered.
    Hang,
    /// The process ends before it answers.
    Exit,
    /// The answer's body breaks off.
    Cut {
        /// Where.
        at: CutPoint,
        /// And what is there instead of the rest.
        then: CutEnd,
    },
    /// The first token is the end, unless the request has `min_tokens`.
    FirstTokenEnds,
    /// Prefill answers as if it had not been told to keep its KV.
    WithoutParameters,
}

/// Where an answer's body breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutPoint {
    /// After so many bytes.
    Bytes(usize),
    /// After the first byte of the first character that has more than one.
    InsideCharacter,
}

/// What follows where an answer's body breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutEnd {
    /// The connection is closed.
    Close,
    /// Nothing, for ever.
    Stall,
    /// The process ends.
    Exit,
}

/// What the bootstrap server answers to `/query`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryOrder {
    /// `{}`.
    Empty,
    /// This status.
    Status(u16),
    /// Nothing.
    Hang,
    /// This text.
    Body(String),
}

/// What happens to KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferOrder {
    /// Prefill answers as ever and keeps nothing.
    Lose,
    /// Prefill never sends what decode asks for.
    Stall,
}

/// The orders in force.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Orders>);

impl Board {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, orders: Orders) {
        *self.orders() = orders;
    }

    /// The order for one more completion.
    pub(crate) fn next_completion(&self) -> Option<CompletionOrder> {
        let mut orders = self.orders();
        match &mut orders.times {
            Some(0) => return None,
            Some(times) => *times -= 1,
            None => {}
        }
        orders.completions.clone()
    }

    pub(crate) fn query(&self) -> Option<QueryOrder> {
        self.orders().query.clone()
    }

    pub(crate) fn transfer(&self) -> Option<TransferOrder> {
        self.orders().transfer
    }

    pub(crate) fn health(&self) -> Option<u16> {
        self.orders().health
    }
}

/// Cuts a body where it was ordered to: what of a piece is still sent, and whether that is all.
#[derive(Debug)]
pub(crate) struct Cutter {
    at: CutPoint,
    sent_bytes: usize,
}

impl Cutter {
    pub(crate) fn new(at: CutPoint) -> Self {
        Self { at, sent_bytes: 0 }
    }

    /// How many bytes of this piece are sent, when it is the last one.
    pub(crate) fn cut(&mut self, piece: &[u8]) -> Option<usize> {
        match self.at {
            CutPoint::Bytes(limit) => {
                let left = limit - self.sent_bytes;
                self.sent_bytes += piece.len().min(left);
                (piece.len() >= left).then_some(left)
            }
            CutPoint::InsideCharacter => piece.iter().position(|byte| *byte >= 0xc0).map(|first| first + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_a_suite_writes_them_and_unknown_ones_are_refused() {
        let text =
            r#"{"completions": {"cut": {"at": "inside-character", "then": "exit"}}, "times": 2, "query": "empty"}"#;
        let orders: Orders = serde_json::from_str(text).unwrap();
        assert_eq!(orders.query, Some(QueryOrder::Empty));
        assert_eq!(
            orders.completions,
            Some(CompletionOrder::Cut { at: CutPoint::InsideCharacter, then: CutEnd::Exit })
        );
        assert!(serde_json::from_str::<Orders>(r#"{"completion": "hang"}"#).is_err());
    }

    #[test]
    fn an_order_for_two_completions_is_over_after_two() {
        let board = Board::default();
        board.put(Orders { completions: Some(CompletionOrder::Hang), times: Some(2), ..Orders::default() });
        let seen: Vec<bool> = (0..4).map(|_| board.next_completion().is_some()).collect();
        assert_eq!(seen, [true, true, false, false]);
    }

    #[test]
    fn a_body_is_cut_at_the_byte_or_inside_a_character() {
        let mut bytes = Cutter::new(CutPoint::Bytes(5));
        assert_eq!(bytes.cut(b"abc"), None);
        assert_eq!(bytes.cut(b"defg"), Some(2));
        assert_eq!(Cutter::new(CutPoint::Bytes(0)).cut(b"a"), Some(0));
        let mut inside = Cutter::new(CutPoint::InsideCharacter);
        assert_eq!(inside.cut(b"abc"), None);
        assert_eq!(inside.cut("dé".as_bytes()), Some(2));
    }
}
