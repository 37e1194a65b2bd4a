{{- define "sandboxd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sandboxd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "sandboxd.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sandboxd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sandboxd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: daemon
{{- end -}}

{{- define "sandboxd.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "sandboxd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The mark on everything that the daemon makes: the same for the life of the release, and no other release's. */ -}}
{{- define "sandboxd.installation" -}}
{{- printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 12 -}}
{{- end -}}

{{- define "sandboxd.account" -}}
{{- default (ternary (include "sandboxd.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "sandboxd.sandboxNamespace" -}}
{{- default .Release.Namespace .Values.sandboxes.namespace -}}
{{- end -}}

{{- define "sandboxd.keySecret" -}}
{{- default (printf "%s-keys" (include "sandboxd.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "sandboxd.claim" -}}
{{- default (printf "%s-state" (include "sandboxd.fullname" .)) .Values.persistence.existingClaim -}}
{{- end -}}

{{- /* A reference of an image: {repository, tag, digest}, with the chart's version for a tag. */ -}}
{{- define "sandboxd.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "sandboxd.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{- .Values.publicUrl -}}
{{- else if .Values.ingress.enabled -}}
{{- printf "%s://%s" (ternary "https" "http" (not (empty .Values.ingress.tlsSecret))) .Values.ingress.host -}}
{{- else if .Values.httpRoute.enabled -}}
{{- printf "%s://%s" (ternary "https" "http" .Values.httpRoute.tls) .Values.httpRoute.host -}}
{{- else -}}
{{- printf "http://%s.%s.svc:%d" (include "sandboxd.fullname" .) .Release.Namespace (int .Values.service.port) -}}
{{- end -}}
{{- end -}}

{{- /* The names of the keys, as JSON: those of the values, and the one that may only look. */ -}}
{{- define "sandboxd.keyNames" -}}
{{- $names := list -}}
{{- range .Values.auth.keys -}}{{- $names = append $names .name -}}{{- end -}}
{{- if eq (include "sandboxd.metricsKey" .) "true" -}}{{- $names = append $names "metrics" -}}{{- end -}}
{{- uniq $names | toJson -}}
{{- end -}}

{{- define "sandboxd.metricsKey" -}}
{{- or .Values.metrics.key .Values.metrics.serviceMonitor.enabled -}}
{{- end -}}

{{- /* Templates that are wanted, each with what all pods have; as JSON. */ -}}
{{- define "sandboxd.templates" -}}
{{- $pod := deepCopy .Values.sandboxes.pod -}}
{{- with .Values.sandboxes.priorityClass.name -}}{{- $pod = mergeOverwrite (dict "priority_class" .) $pod -}}{{- end -}}
{{- $found := dict -}}
{{- range $name, $template := .Values.templates -}}
{{- if $template -}}
{{- $own := default dict $template.kubernetes -}}
{{- $whole := deepCopy $template -}}
{{- if or $pod $own -}}{{- $_ := set $whole "kubernetes" (mergeOverwrite (deepCopy $pod) $own) -}}{{- end -}}
{{- $_ := set $found $name $whole -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
