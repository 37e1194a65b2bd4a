{{- /* What the Pod Security level `restricted` asks for. */ -}}
{{- define "sandboxd.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sandboxd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What a daemon does in the namespace of its sandboxes; `sandboxd doctor` asks for the same. */ -}}
{{- define "sandboxd.rules" -}}
- {apiGroups: [""], resources: [pods], verbs: [create, get, list, watch, patch, delete]}
{{- if eq .Values.sandboxes.guest "forward" }}
- {apiGroups: [""], resources: [pods/portforward], verbs: [create, get]}
{{- end }}
{{- if .Values.sandboxes.prefetchImages }}
- {apiGroups: [apps], resources: [daemonsets], verbs: [create, list, delete]}
{{- end }}
- {apiGroups: [""], resources: [secrets], verbs: [create, list, delete]}
- {apiGroups: [""], resources: [events], verbs: [list]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, update, delete]}
{{- end -}}

{{- /* What comes when the release is to go, and goes with it. */ -}}
{{- define "sandboxd.sweepHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-output-log-policy: hook-failed
{{- end -}}
