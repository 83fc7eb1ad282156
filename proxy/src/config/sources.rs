//! Where backends come from: for each role one of a fixed list, the EndpointSlices of a Service, or the file that names
//! both roles.

use std::path::PathBuf;

use gco_runtime::environment::{Environment, EnvironmentReader};

use crate::backends::sources::fixed;
use crate::backends::{Description, Role};
use crate::exchange::Connector;

/// Which port of a Service's endpoints is the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChoice {
    /// The only one, or the one that is called `http`.
    Default,
    /// The one of this name.
    Name(String),
    /// This one.
    Number(u16),
}

/// The Service whose EndpointSlices name a role's engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceChoice {
    /// Its name.
    pub name: String,
    /// The engine's port.
    pub port: PortChoice,
}

/// Where the backends of one role come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: the role does not exist here.
    None,
    /// A fixed list.
    Fixed(Vec<Description>),
    /// EndpointSlices.
    Service(ServiceChoice),
    /// The backends file.
    File,
}

/// Where backends come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Of prefill engines.
    pub prefill: Source,
    /// Of decode engines.
    pub decode: Source,
    /// `GCO_PROXY_BACKENDS_FILE`
    pub file: Option<PathBuf>,
    /// `GCO_PROXY_DIAL_MAP_FILE`
    pub dial_map: Option<PathBuf>,
    /// `GCO_PROXY_NAMESPACE`: of the Services; `None`: the pod's own.
    pub namespace: Option<String>,
    /// `GCO_PROXY_BOOTSTRAP_PORT`, when the connector asks bootstrap servers.
    pub bootstrap_port: Option<u16>,
}

impl Sources {
    /// The source of a role.
    #[must_use]
    pub const fn of(&self, role: Role) -> &Source {
        match role {
            Role::Prefill => &self.prefill,
            Role::Decode => &self.decode,
        }
    }

    /// Whether there can be prefill engines at all; without, every request is served whole by decode (contract D.1: an
    /// empty `PD_PROXY_PREFILL_URL` means no priming).
    #[must_use]
    pub fn has_prefill(&self) -> bool {
        self.prefill != Source::None
    }

    pub(super) fn read(reader: &mut EnvironmentReader<'_>, environment: &Environment, connector: Connector) -> Self {
        let port = reader.number("GCO_PROXY_BOOTSTRAP_PORT", 8_998_u16, 1..=u16::MAX);
        let bootstrap_port = (connector == Connector::Mooncake).then_some(port);
        let file: Option<PathBuf> = reader.optional_text("GCO_PROXY_BACKENDS_FILE").map(Into::into);
        let dial_map: Option<PathBuf> = reader.optional_text("GCO_PROXY_DIAL_MAP_FILE").map(Into::into);
        let namespace =
            reader.parsed("GCO_PROXY_NAMESPACE", None, A_LABEL, |text| is_label(text).then(|| Some(text.to_owned())));
        let mut role = |role: Role, url: &str, service: &str| {
            let urls = reader.list(url);
            let chosen = reader.parsed(service, None, A_SERVICE, |text| service_choice(text).map(Some));
            if file.is_some() {
                for name in [url, service].into_iter().filter(|name| environment.non_empty(name).is_some()) {
                    reader.refuse(name, "unset: GCO_PROXY_BACKENDS_FILE is set, and backends come from one source");
                }
                return Source::File;
            }
            if !urls.is_empty() && environment.non_empty(service).is_some() {
                reader.refuse(service, &format!("unset: {url} is set, and backends come from one source"));
            }
            if let Some(service) = chosen {
                return Source::Service(service);
            }
            if urls.is_empty() {
                return Source::None;
            }
            match fixed::backends(role, &urls, bootstrap_port) {
                Ok(described) => Source::Fixed(described),
                Err(error) => {
                    reader.refuse(url, &format!("http://host:port, or several with commas ({error})"));
                    Source::None
                }
            }
        };
        let prefill = role(Role::Prefill, "PD_PROXY_PREFILL_URL", "GCO_PROXY_PREFILL_SERVICE");
        let decode = role(Role::Decode, "PD_PROXY_DECODE_URL", "GCO_PROXY_DECODE_SERVICE");
        let decode_names = ["PD_PROXY_DECODE_URL", "GCO_PROXY_DECODE_SERVICE"];
        if decode == Source::None && decode_names.iter().all(|name| environment.non_empty(name).is_none()) {
            reader.refuse(
                "PD_PROXY_DECODE_URL",
                "http://host:port, unless GCO_PROXY_DECODE_SERVICE or GCO_PROXY_BACKENDS_FILE names the decode engines",
            );
        }
        Self { prefill, decode, file, dial_map, namespace, bootstrap_port }
    }
}

const A_LABEL: &str = "a namespace's name: lower case letters, digits and '-', at most 63";
const A_SERVICE: &str = "a Service's name, or name:port with a port's name or number";

fn service_choice(text: &str) -> Option<ServiceChoice> {
    let (name, port) = match text.split_once(':') {
        None => (text, PortChoice::Default),
        Some((name, port)) => match port.parse::<u16>() {
            Ok(0) => return None,
            Ok(number) => (name, PortChoice::Number(number)),
            Err(_) => (name, PortChoice::Name(Some(port).filter(|port| is_label(port))?.to_owned())),
        },
    };
    is_label(name).then(|| ServiceChoice { name: name.to_owned(), port })
}

fn is_label(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(allowed) && !name.starts_with('-') && !name.ends_with('-')
}
