//! The words for how exchanges end: the same in metrics, logs and response headers.

/// Why there is no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Absence {
    /// No backend of the role is known, or none is ready.
    None,
    /// All failed lately.
    Down,
    /// All have as many requests as they may have.
    Full,
    /// All were tried for this request.
    Tried,
}

/// How a leg failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No connection.
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// The connection broke before the answer was whole.
    Broken,
    /// The engine answered 5xx.
    Status,
}

/// Why a request was not served with KV from prefill, or not served at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    // The request is served whole by decode for what it is.
    /// Its path is not one that is split.
    Path,
    /// Its body has a content encoding, or is no JSON.
    Encoding,
    /// More than one answer: `n`.
    ManyAnswers,
    /// The best of several answers: `best_of`.
    BestOf,
    /// Beam search.
    BeamSearch,
    /// It wants log probabilities of the prompt.
    PromptLogprobs,
    /// It wants the prompt echoed.
    Echo,
    /// Several prompts, which would share one set of parameters.
    ManyPrompts,
    /// The prompt is given as embeddings.
    PromptEmbeddings,
    /// No prefill is configured.
    NoPrefillConfigured,

    // Prefill gave no KV.
    /// No prefill backend is ready.
    NoPrefill,
    /// All prefill backends failed lately.
    PrefillDown,
    /// All prefill backends are full.
    PrefillFull,
    /// No connection to prefill.
    PrefillUnreachable,
    /// Prefill did not answer in time.
    PrefillTimedOut,
    /// Prefill broke off.
    PrefillBroken,
    /// Prefill answered 5xx.
    PrefillFailed,
    /// Prefill's engine id cannot be learnt.
    EngineUnknown,
    /// Prefill answered without usable parameters.
    NoParameters,
    /// Decode had no KV in time after prefill's answer.
    HandOffTimedOut,
    /// Decode said that the hand-over failed.
    HandOffFailed,

    // Decode gave no answer.
    /// No decode backend is ready.
    NoDecode,
    /// All decode backends failed lately.
    DecodeDown,
    /// All decode backends are full.
    DecodeFull,
    /// No connection to decode.
    DecodeUnreachable,
    /// Decode gave no answer in time.
    DecodeTimedOut,
    /// Decode broke off before its first event.
    DecodeBroken,
    /// Decode answered 5xx.
    DecodeFailed,

    // The request was refused.
    /// Prefill answered 4xx.
    PrefillRefused,
    /// Decode answered 4xx.
    DecodeRefused,
    /// The client left first.
    ClientGone,
}

impl Reason {
    /// All, for metrics that start at zero and for the reference page.
    pub const ALL: [Self; 31] = [
        Self::Path,
        Self::Encoding,
        Self::ManyAnswers,
        Self::BestOf,
        Self::BeamSearch,
        Self::PromptLogprobs,
        Self::Echo,
        Self::ManyPrompts,
        Self::PromptEmbeddings,
        Self::NoPrefillConfigured,
        Self::NoPrefill,
        Self::PrefillDown,
        Self::PrefillFull,
        Self::PrefillUnreachable,
        Self::PrefillTimedOut,
        Self::PrefillBroken,
        Self::PrefillFailed,
        Self::EngineUnknown,
        Self::NoParameters,
        Self::HandOffTimedOut,
        Self::HandOffFailed,
        Self::NoDecode,
        Self::DecodeDown,
        Self::DecodeFull,
        Self::DecodeUnreachable,
        Self::DecodeTimedOut,
        Self::DecodeBroken,
        Self::DecodeFailed,
        Self::PrefillRefused,
        Self::DecodeRefused,
        Self::ClientGone,
    ];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Encoding => "encoding",
            Self::ManyAnswers => "many-answers",
            Self::BestOf => "best-of",
            Self::BeamSearch => "beam-search",
            Self::PromptLogprobs => "prompt-logprobs",
            Self::Echo => "echo",
            Self::ManyPrompts => "many-prompts",
            Self::PromptEmbeddings => "prompt-embeddings",
            Self::NoPrefillConfigured => "no-prefill-configured",
            Self::NoPrefill => "no-prefill",
            Self::PrefillDown => "prefill-down",
            Self::PrefillFull => "prefill-full",
            Self::PrefillUnreachable => "prefill-unreachable",
            Self::PrefillTimedOut => "prefill-timed-out",
            Self::PrefillBroken => "prefill-broken",
            Self::PrefillFailed => "prefill-failed",
            Self::EngineUnknown => "engine-unknown",
            Self::NoParameters => "no-parameters",
            Self::HandOffTimedOut => "hand-off-timed-out",
            Self::HandOffFailed => "hand-off-failed",
            Self::NoDecode => "no-decode",
            Self::DecodeDown => "decode-down",
            Self::DecodeFull => "decode-full",
            Self::DecodeUnreachable => "decode-unreachable",
            Self::DecodeTimedOut => "decode-timed-out",
            Self::DecodeBroken => "decode-broken",
            Self::DecodeFailed => "decode-failed",
            Self::PrefillRefused => "prefill-refused",
            Self::DecodeRefused => "decode-refused",
            Self::ClientGone => "client-gone",
        }
    }

    pub(super) const fn of_prefill(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable => Self::PrefillUnreachable,
            Fault::TimedOut => Self::PrefillTimedOut,
            Fault::Broken => Self::PrefillBroken,
            Fault::Status => Self::PrefillFailed,
        }
    }

    pub(super) const fn of_decode(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable => Self::DecodeUnreachable,
            Fault::TimedOut => Self::DecodeTimedOut,
            Fault::Broken => Self::DecodeBroken,
            Fault::Status => Self::DecodeFailed,
        }
    }
}

/// How an exchange ended, as seen by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Decode answered with the KV that prefill computed.
    Transferred,
    /// Prefill computed the prompt before decode was asked; whether decode found the blocks only the engines know.
    Primed,
    /// Decode answered and computed the prompt itself.
    DecodeOnly(Reason),
    /// The client got an error.
    Refused(Reason),
    /// The client left before it got an answer.
    Abandoned,
}

impl Outcome {
    /// The word for the outcome.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Transferred => "transferred",
            Self::Primed => "primed",
            Self::DecodeOnly(_) => "decode-only",
            Self::Refused(_) => "refused",
            Self::Abandoned => "abandoned",
        }
    }

    /// Why; `None` when everything went as it should.
    #[must_use]
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Transferred | Self::Primed => None,
            Self::DecodeOnly(reason) | Self::Refused(reason) => Some(reason),
            Self::Abandoned => Some(Reason::ClientGone),
        }
    }

    /// The value of the response header `x-gco-exchange`.
    #[must_use]
    pub fn header(self) -> String {
        match self.reason() {
            None => self.word().to_owned(),
            Some(reason) => format!("{}; reason={}", self.word(), reason.word()),
        }
    }
}
