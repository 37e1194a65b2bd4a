{{- /* A value in TOML: its numbers, texts and lists are JSON's, its tables are not. Nothing is left of what is null. */ -}}
{{- define "sandboxd.toml" -}}
{{- if kindIs "map" . -}}
{ {{- $first := true -}}
{{- range $name, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- if not $first }},{{ end }} {{ toJson $name }} = {{ include "sandboxd.toml" $value }}
{{- $first = false -}}
{{- end -}}
{{- end }} }
{{- else if kindIs "slice" . -}}
[
{{- range $place, $value := . -}}
{{- if $place }}, {{ end }}{{ include "sandboxd.toml" $value }}
{{- end -}}
]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- /* The lines of a table; nothing of what is null. */ -}}
{{- define "sandboxd.tomlLines" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "sandboxd.toml" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* [backend], which the daemon and the sweep before an uninstall have in common. {root, policy} */ -}}
{{- define "sandboxd.tomlBackend" -}}
{{- $sandboxes := .root.Values.sandboxes -}}
[backend]
kind = "kubernetes"
orphan_s = {{ $sandboxes.orphanSeconds }}

[backend.kubernetes]
namespace = {{ include "sandboxd.sandboxNamespace" .root | toJson }}
guest_image = {{ include "sandboxd.image" (dict "root" .root "image" .root.Values.guestImage) | toJson }}
guest = {{ toJson $sandboxes.guest }}
guest_volume = {{ toJson $sandboxes.guestVolume }}
seccomp_profile = {{ toJson $sandboxes.seccompProfile }}
prefetch_images = {{ $sandboxes.prefetchImages }}
network_policy = {{ toJson .policy }}
starting = {{ $sandboxes.starting }}
ready_timeout_s = {{ $sandboxes.readyTimeoutSeconds }}
unschedulable_s = {{ $sandboxes.unschedulableSeconds }}
cpu_request = {{ $sandboxes.cpuRequest }}
memory_request = {{ $sandboxes.memoryRequest }}
image_pull_secrets = {{ include "sandboxd.toml" $sandboxes.imagePullSecrets }}
allow_images = {{ include "sandboxd.toml" $sandboxes.allowImages }}
{{- end -}}

{{- /* The whole configuration. */ -}}
{{- define "sandboxd.config" -}}
{{- $root := . -}}
state_dir = "/var/lib/sandboxd"
installation = {{ include "sandboxd.installation" . | toJson }}

[server]
host = "0.0.0.0"
port = 8420
public_url = {{ include "sandboxd.publicUrl" . | toJson }}
{{- range .Values.auth.keys }}

[[server.api_keys]]
name = {{ toJson .name }}
key_file = {{ printf "/etc/sandboxd/keys/%s" .name | toJson }}
{{- with .quota }}
quota = {{ include "sandboxd.toml" . }}
{{- end }}
{{- end }}
{{- if eq (include "sandboxd.metricsKey" .) "true" }}

[[server.api_keys]]
name = "metrics"
key_file = "/etc/sandboxd/keys/metrics"
quota = {leases = 0}
{{- end }}

{{ include "sandboxd.tomlBackend" (dict "root" . "policy" .Values.sandboxes.networkPolicy) }}
{{- range $table, $values := dict "limits" .Values.limits "way_out" .Values.wayOut "log" .Values.log }}
{{- with $values }}

[{{ $table }}]
{{- include "sandboxd.tomlLines" . }}
{{- end }}
{{- end }}
{{- with .Values.telemetry.otlpEndpoint }}

[telemetry]
otlp_endpoint = {{ toJson . }}
{{- end }}
{{- range $dialect, $values := .Values.compat }}
{{- with $values }}

[compat.{{ $dialect }}]
{{- include "sandboxd.tomlLines" . }}
{{- end }}
{{- end }}
{{- range $name, $server := .Values.mcpServers }}
{{- with $server }}

[mcp_servers.{{ toJson $name }}]
{{- include "sandboxd.tomlLines" . }}
{{- end }}
{{- end }}
{{- range $name, $template := include "sandboxd.templates" . | fromJson }}

[templates.{{ toJson $name }}]
{{- include "sandboxd.tomlLines" $template }}
{{- end }}
{{- end -}}
