//! Which container image stands for which program on this machine.

use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::FAULT_KEY;
use crate::engine::Fault;

/// How a program is told where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortPassing {
    /// By this flag, after the container's own arguments: of a doubled flag the last one counts.
    Flag(String),
    /// By this environment variable.
    Variable(String),
}

/// A program that runs in place of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The executable.
    pub executable: PathBuf,
    /// Arguments before the container's own.
    pub arguments: Vec<String>,
    /// How it learns its port.
    pub port_passing: PortPassing,
    /// The exit code by which it says that its port was taken: it is then started again with
    /// another one, and nobody hears of it.
    pub port_taken_exit_code: Option<u8>,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRule {
    /// Parts of an image's name, in lower case; one of them is enough.
    pub any_of: Vec<String>,
    /// What runs.
    pub program: Program,
}

/// Which images are known. Everything else cannot be pulled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageTable {
    /// The first rule that fits counts.
    pub rules: Vec<ImageRule>,
    /// Parts of the names of images that are known as init containers; they succeed at once.
    pub initializers: Vec<String>,
}

impl ImageTable {
    /// The usual table: model servers are the simulated engine at this path.
    #[must_use]
    pub fn with_engine(executable: PathBuf) -> Self {
        let program = Program {
            executable,
            arguments: Vec::new(),
            port_passing: PortPassing::Flag("--port".to_owned()),
            port_taken_exit_code: Some(crate::engine::EXIT_CODE_PORT_TAKEN),
        };
        let any_of = ["vllm", "text-generation-inference", "/tgi", "gco-engine"].map(str::to_owned).to_vec();
        Self { rules: vec![ImageRule { any_of, program }], initializers: vec!["aws-cli".to_owned()] }
    }

    /// What runs in place of this image.
    #[must_use]
    pub fn program(&self, image: &str) -> Option<&Program> {
        let image = image.to_lowercase();
        let fits = |rule: &&ImageRule| rule.any_of.iter().any(|part| image.contains(part.as_str()));
        self.rules.iter().find(fits).map(|rule| &rule.program)
    }

    /// Whether an init container with this image succeeds.
    #[must_use]
    pub fn initializes(&self, image: &str) -> bool {
        let image = image.to_lowercase();
        self.initializers.iter().any(|part| image.contains(part.as_str()))
    }
}

/// A fault that a pod asks for, by its image or its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodFault {
    /// The image cannot be pulled.
    Pull,
    /// The process fails.
    Engine(Fault),
}

impl PodFault {
    /// The fault that a pod asks for in its metadata, or its container's image in its tag.
    pub(super) fn asked(metadata: &ObjectMeta, image: &str) -> Option<Self> {
        let maps = [&metadata.annotations, &metadata.labels];
        let asked = maps.into_iter().flatten().find_map(|map| map.get(FAULT_KEY));
        match asked.map(String::as_str) {
            // Whatever the image says: pods of one image that start and others that do not.
            Some("none") => None,
            asked => asked.and_then(Self::parse).or_else(|| Self::of_image(image)),
        }
    }

    /// Reads the value of `gco.io/simulated-fault`: `pull`, `crash`, `never-ready`, or whatever
    /// [`Fault::parse`] reads.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "pull" => Some(Self::Pull),
            "crash" => Some(Self::Engine(Fault::CrashAtStart { exit_code: 1 })),
            "never-ready" => Some(Self::Engine(Fault::NeverHealthy)),
            other => Fault::parse(other).map(Self::Engine),
        }
    }

    /// The fault that an image's tag asks for: `name:fault-crash-3`.
    pub(super) fn of_image(image: &str) -> Option<Self> {
        let name = image.split('@').next().unwrap_or(image);
        let (_, tag) = name.rsplit('/').next()?.split_once(':')?;
        Self::parse(tag.strip_prefix("fault-")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_servers_are_known_whatever_their_registry_and_others_are_not() {
        let table = ImageTable::with_engine("/bin/engine".into());
        for known in [
            "vllm/vllm-openai:v0.11.0",
            "123456789012.dkr.ecr.us-east-1.amazonaws.com/VLLM:1",
            "ghcr.io/huggingface/text-generation-inference:3",
            "registry.example/tgi:1",
            "gco-engine",
        ] {
            assert!(table.program(known).is_some(), "{known}");
        }
        for unknown in ["nginx", "tgi-like", "busybox:1"] {
            assert!(table.program(unknown).is_none(), "{unknown}");
        }
        assert!(table.initializes("public.ecr.aws/aws-cli/aws-cli:2.36.44@sha256:e846"));
        assert!(!table.initializes("busybox"));
    }

    #[test]
    fn an_annotation_or_a_label_may_ask_for_a_fault() {
        let with = |value: &str| Some([(FAULT_KEY.to_owned(), value.to_owned())].into());
        let annotated = ObjectMeta { annotations: with("pull"), labels: with("crash"), ..ObjectMeta::default() };
        assert_eq!(PodFault::asked(&annotated, "vllm"), Some(PodFault::Pull));
        let labelled = ObjectMeta { labels: with("crash"), ..ObjectMeta::default() };
        let crash = PodFault::Engine(Fault::CrashAtStart { exit_code: 1 });
        assert_eq!(PodFault::asked(&labelled, "vllm:fault-pull"), Some(crash));
        assert_eq!(PodFault::asked(&ObjectMeta::default(), "vllm"), None);
        let none = ObjectMeta { annotations: with("none"), ..ObjectMeta::default() };
        assert_eq!(PodFault::asked(&none, "vllm:fault-pull"), None);
    }

    #[test]
    fn a_tag_may_ask_for_a_fault() {
        assert_eq!(PodFault::of_image("x/vllm:fault-pull"), Some(PodFault::Pull));
        let crash = PodFault::Engine(Fault::CrashAtStart { exit_code: 3 });
        assert_eq!(PodFault::of_image("localhost:5000/vllm:fault-crash-3@sha256:00"), Some(crash));
        assert_eq!(PodFault::of_image("localhost:5000/fault-pull"), None);
        assert_eq!(PodFault::of_image("vllm:v1"), None);
        assert_eq!(PodFault::parse("never-ready"), Some(PodFault::Engine(Fault::NeverHealthy)));
    }
}
