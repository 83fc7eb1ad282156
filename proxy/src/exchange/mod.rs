//! One request as a state machine without I/O: events go in, actions come out.
//!
//! It knows which leg is sent when, what a failure leads to, and when nothing may be called any more. It knows no bytes, no
//! sockets and no clock; the shell that drives it is [`crate::server`].
//!
//! | Connector | How the KV cache gets from prefill to decode |
//! |---|---|
//! | [`Connector::Mooncake`] | both legs at once, tied by a transfer id and prefill's engine id (contract D.6) |
//! | [`Connector::Nixl`] | prefill first; the parameters that it answers go with decode's request |
//! | [`Connector::Plain`] | prefill first, nothing is handed over: engines that share a store find the blocks by themselves |
//!
//! A request whose answer a split would change, or that cannot be split, is served whole by decode.

mod machine;
pub mod parameters;
mod words;

#[cfg(test)]
mod orders;

pub use machine::{Exchange, Rules};
pub use words::{Absence, Fault, Outcome, Reason};

/// How the KV cache moves; `GCO_PROXY_CONNECTOR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Connector {
    /// vLLM's MooncakeConnector.
    #[default]
    Mooncake,
    /// vLLM's NixlConnector.
    Nixl,
    /// None: prefill is only asked to compute the prompt.
    Plain,
}

impl Connector {
    /// All, with their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("mooncake", Self::Mooncake), ("nixl", Self::Nixl), ("plain", Self::Plain)];

    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Nixl => "nixl",
            Self::Plain => "plain",
        }
    }

    /// Whether both legs are sent at once.
    #[must_use]
    pub const fn is_concurrent(self) -> bool {
        matches!(self, Self::Mooncake)
    }

    /// Whether decode's request carries parameters.
    #[must_use]
    pub const fn has_parameters(self) -> bool {
        matches!(self, Self::Mooncake | Self::Nixl)
    }
}

/// What happens when no KV cache can be had from prefill; `GCO_PROXY_FALLBACK`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// Decode computes the prompt itself.
    #[default]
    DecodeOnly,
    /// The client is told.
    Fail,
}

impl Fallback {
    /// All, with their names.
    pub const NAMES: [(&'static str, Self); 2] = [("decode-only", Self::DecodeOnly), ("fail", Self::Fail)];

    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::DecodeOnly => "decode-only",
            Self::Fail => "fail",
        }
    }
}

/// A clock that the shell keeps for the exchange; at most one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// For prefill's answer; `GCO_PROXY_PREFILL_TIMEOUT_SECONDS`.
    Prefill,
    /// From prefill's answer to decode's first event; `GCO_PROXY_HANDOFF_TIMEOUT_SECONDS`.
    HandOff,
}

/// What prefill answered, or how it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefillAnswer {
    /// 2xx, with the parameters that the connector needs, if it needs any.
    Ready,
    /// 2xx, but without usable parameters.
    NoParameters,
    /// 4xx: the request is at fault, and decode would say the same.
    ClientError,
    /// It failed.
    Failed(Fault),
}

/// How decode began to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeAnswer {
    /// Head and first event are here (or the whole, empty, body).
    Begun,
    /// 4xx: the request is at fault.
    ClientError,
    /// 500, or an event stream that begins with an error: with parameters, the hand-over failed; without, it is the
    /// engine's answer.
    Failed,
    /// Nothing came, or 502, 503, 504: another decode may do better. `answered`: there is an answer that can be relayed.
    Unavailable {
        /// Whether there is a whole answer that can be relayed for want of a better one.
        answered: bool,
        /// What went wrong.
        fault: Fault,
    },
}

/// What the shell tells the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The request is here and was found good.
    Begin,
    /// A decode backend was chosen.
    DecodeChosen,
    /// There is none.
    NoDecode(Absence),
    /// A prefill backend was chosen.
    PrefillChosen,
    /// There is none.
    NoPrefill(Absence),
    /// The chosen prefill's engine id is known.
    Identified,
    /// It cannot be learnt.
    Unidentified,
    /// Prefill answered or failed.
    Prefill(PrefillAnswer),
    /// Decode began to answer, or failed before it did.
    Decode(DecodeAnswer),
    /// The running clock is over.
    Expired(Deadline),
    /// The client left.
    ClientGone,
    /// Decode's answer was relayed to its end.
    Relayed,
    /// Decode's answer broke off after bytes of it had reached the client.
    BrokeOff,
}

/// What the shell does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Choose a decode backend that was not tried; tells [`Event::DecodeChosen`] or [`Event::NoDecode`].
    ChooseDecode,
    /// Choose a prefill backend that did not fail; tells [`Event::PrefillChosen`] or [`Event::NoPrefill`]. Begins a new
    /// try: a new transfer id.
    ChoosePrefill,
    /// Learn the prefill's engine id; tells [`Event::Identified`] or [`Event::Unidentified`].
    Identify,
    /// Send the prefill leg of this try.
    SendPrefill,
    /// Send the decode leg, with this try's whole set of parameters or with none.
    SendDecode {
        /// Whether it carries parameters.
        with_parameters: bool,
    },
    /// Close the prefill leg: the engine aborts what it does.
    ClosePrefill,
    /// Close the decode leg; nothing of it reaches the client.
    CloseDecode,
    /// An exchange with this prefill's engine ids failed: learn them again next time.
    ForgetIdentity,
    /// Start this clock in the place of any other.
    Start(Deadline),
    /// Stop the clock.
    Stop,
    /// Relay decode's answer: head, what was held back of it, the rest.
    RelayDecode(Outcome),
    /// Relay prefill's answer.
    RelayPrefill(Outcome),
    /// Answer with an error of our own.
    Refuse(Outcome),
    /// End the client's connection so that it sees that the answer is not whole.
    Abort,
    /// The exchange ended without an answer of ours: count it.
    Count(Outcome),
}
