//! From a container to a command line: arguments, variables and ports of the process that runs in
//! its place.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use kube::Api;

use gco_bed::process::ProcessSettings;

use super::Shared;
use super::images::{PodFault, PortPassing, Program};
use super::probe::hook_delay;

/// The pod grace of a pod that names none, in seconds.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What is needed to start a container's process, and where it will listen.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) process: ProcessSettings,
    /// The container's port and the port of this machine; `None` when the container declares none.
    pub(super) port: Option<(u16, u16)>,
    pub(super) port_taken_exit_code: Option<u8>,
}

impl Launch {
    /// Puts everything together.
    ///
    /// # Errors
    ///
    /// With the words for the container's status when a variable cannot be resolved.
    pub(super) async fn new(
        shared: &Shared,
        pod: &Pod,
        container: &Container,
        program: &Program,
        fault: Option<&PodFault>,
        address: &str,
    ) -> Result<Self, String> {
        let declared = variables(shared, pod, container, address).await?;
        let mut variables = shared.settings.variables.clone();
        variables.extend([
            ("HOSTNAME".to_owned(), pod.metadata.name.clone().unwrap_or_default()),
            ("POD_NAME".to_owned(), pod.metadata.name.clone().unwrap_or_default()),
            ("GCO_REGION".to_owned(), shared.settings.region.clone()),
            ("GCO_ENGINE_GRACE_SECONDS".to_owned(), engine_grace_seconds(pod, container).to_string()),
            ("GCO_ENGINE_SHOWN_VARIABLES".to_owned(), declared.keys().cloned().collect::<Vec<_>>().join(",")),
        ]);
        if let Some(PodFault::Engine(fault)) = fault {
            variables.insert("GCO_ENGINE_FAULT".to_owned(), fault.to_string());
        }
        let mut arguments = arguments(container, program, &declared);
        variables.extend(declared);

        let local = free_port().map_err(|problem| format!("no free port on this machine: {problem}"))?;
        match &program.port_passing {
            PortPassing::Flag(flag) => arguments.extend([flag.clone(), local.to_string()]),
            PortPassing::Variable(name) => {
                variables.insert(name.clone(), local.to_string());
            }
        }
        let mut process = ProcessSettings::new(&program.executable, log_file(shared, pod, container))
            .arguments(arguments)
            .without_our_environment();
        for (name, value) in variables {
            process = process.variable(name, value);
        }
        let declared_port = container.ports.iter().flatten().next().map(|port| port.container_port);
        Ok(Self {
            process,
            port: declared_port.and_then(|port| u16::try_from(port).ok()).map(|port| (port, local)),
            port_taken_exit_code: program.port_taken_exit_code,
        })
    }
}

/// A port that is free now. Another process can take it first: then the program ends with its own
/// exit code for that, and is started with another port.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn log_file(shared: &Shared, pod: &Pod, container: &Container) -> PathBuf {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let name = format!("{}_{}_{}.log", part(&pod.metadata.namespace), part(&pod.metadata.name), container.name);
    shared.settings.log_folder.join(name)
}

/// What is left of the pod's grace after its preStop hook, and half a second before it is killed.
fn engine_grace_seconds(pod: &Pod, container: &Container) -> f64 {
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let grace = u32::try_from(grace.unwrap_or(DEFAULT_GRACE_SECONDS)).unwrap_or_default();
    (f64::from(grace) - hook_delay(container).as_secs_f64() - 0.5).max(0.5)
}

/// The flags of the container. A command is another way to start the same server: its program is
/// replaced by ours, its flags are kept.
fn arguments(container: &Container, program: &Program, variables: &BTreeMap<String, String>) -> Vec<String> {
    let command = container.command.as_deref().unwrap_or_default();
    let ours = program.executable.file_name().map(|name| name.to_string_lossy().into_owned());
    let names_ours = command.first().map(|first| first.rsplit('/').next().unwrap_or(first).to_owned()) == ours;
    let of_command = if names_ours && !command.is_empty() {
        &command[1..]
    } else {
        let first_flag = command.iter().position(|part| part.starts_with("--")).unwrap_or(command.len());
        &command[first_flag..]
    };
    let all = of_command.iter().chain(container.args.iter().flatten());
    program.arguments.iter().cloned().chain(all.map(|one| expand(one, variables))).collect()
}

/// Replaces `$(NAME)` by the variable's value; `$$` stands for one dollar sign, and what is not
/// known stays as it is.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('$') {
        expanded.push_str(&rest[..position]);
        rest = &rest[position + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let named = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match named.and_then(|(name, after)| variables.get(name).map(|value| (value, after))) {
            Some((value, after)) => {
                expanded.push_str(value);
                rest = after;
            }
            None => expanded.push('$'),
        }
    }
    expanded.push_str(rest);
    expanded
}

/// The variables that the container declares.
async fn variables(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    address: &str,
) -> Result<BTreeMap<String, String>, String> {
    if container.env_from.as_ref().is_some_and(|from| !from.is_empty()) {
        return Err("envFrom is not simulated".to_owned());
    }
    let mut variables = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => Some(expand(value, &variables)),
            (None, Some(source)) => resolve(shared, pod, source, address).await?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            variables.insert(variable.name.clone(), value);
        }
    }
    Ok(variables)
}

/// The value that a variable takes from elsewhere; `None` when it is optional and absent.
async fn resolve(shared: &Shared, pod: &Pod, source: &EnvVarSource, address: &str) -> Result<Option<String>, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(field) = &source.field_ref {
        let value = field_value(pod, &field.field_path, address);
        return value.map(Some).ok_or_else(|| format!("field {} is not simulated", field.field_path));
    }
    let (what, name, key, optional, value) = if let Some(reference) = &source.config_map_key_ref {
        let maps: Api<ConfigMap> = Api::namespaced(shared.client.clone(), namespace);
        let found = maps.get_opt(&reference.name).await.map_err(|problem| problem.to_string())?;
        let value = found.and_then(|map| map.data?.remove(&reference.key));
        ("configmap", &reference.name, &reference.key, reference.optional, value)
    } else if let Some(reference) = &source.secret_key_ref {
        let secrets: Api<Secret> = Api::namespaced(shared.client.clone(), namespace);
        let found = secrets.get_opt(&reference.name).await.map_err(|problem| problem.to_string())?;
        let value = found.and_then(|secret| secret.data?.remove(&reference.key));
        let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        ("secret", &reference.name, &reference.key, reference.optional, value)
    } else {
        return Err("this source of a variable is not simulated".to_owned());
    };
    match value {
        None if optional != Some(true) => Err(format!("couldn't find key {key} in {what} {namespace}/{name}")),
        value => Ok(value),
    }
}

fn field_value(pod: &Pod, path: &str, address: &str) -> Option<String> {
    let spec = pod.spec.as_ref();
    let quoted = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']").map(str::to_owned);
    match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => spec?.node_name.clone(),
        "spec.serviceAccountName" => spec?.service_account_name.clone(),
        "status.podIP" => Some(address.to_owned()),
        _ => {
            let label = quoted("metadata.labels['").map(|key| pod.metadata.labels.as_ref()?.get(&key).cloned());
            let annotation =
                quoted("metadata.annotations['").map(|key| pod.metadata.annotations.as_ref()?.get(&key).cloned());
            label.or(annotation).map(Option::unwrap_or_default)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(value: serde_json::Value) -> Container {
        let mut container = json!({"name": "inference"});
        container.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(container).unwrap()
    }

    fn program() -> Program {
        Program {
            executable: "/opt/gco-engine".into(),
            arguments: Vec::new(),
            port_passing: PortPassing::Flag("--port".to_owned()),
            port_taken_exit_code: None,
        }
    }

    #[test]
    fn flags_of_a_command_are_kept_and_its_program_is_not() {
        let read = |value| arguments(&container(value), &program(), &BTreeMap::new());
        assert_eq!(read(json!({"args": ["serve", "m"]})), ["serve", "m"]);
        assert_eq!(
            read(json!({"command": ["vllm", "serve", "--model", "m"], "args": ["--x"]})),
            ["--model", "m", "--x"]
        );
        assert_eq!(read(json!({"command": ["/bin/gco-engine", "m"], "args": ["--x"]})), ["m", "--x"]);
        assert_eq!(read(json!({"command": ["true"]})), [""; 0]);
    }

    #[test]
    fn references_to_variables_are_replaced_as_a_kubelet_does() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        assert_eq!(expand("x$(A)y$(B)$$(A)$", &variables), "x1y$(B)$(A)$");
    }

    #[test]
    fn fields_of_the_pod_can_be_asked_for() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {"app": "demo"}}, "spec": {"containers": [], "nodeName": "n"}
        }))
        .unwrap();
        assert_eq!(field_value(&pod, "metadata.name", "").as_deref(), Some("p"));
        assert_eq!(field_value(&pod, "metadata.labels['app']", "").as_deref(), Some("demo"));
        assert_eq!(field_value(&pod, "metadata.labels['other']", "").as_deref(), Some(""));
        assert_eq!(field_value(&pod, "status.podIP", "192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(field_value(&pod, "status.qosClass", ""), None);
    }

    #[test]
    fn the_engine_knows_how_long_it_may_drain() {
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"containers": []}})).unwrap();
        let hook = container(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}));
        assert!((engine_grace_seconds(&pod, &hook) - 24.5).abs() < 1e-9);
        pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(0);
        assert!((engine_grace_seconds(&pod, &hook) - 0.5).abs() < 1e-9);
    }
}
