{{- /* What one value alone cannot show to be wrong; each sentence names the mend. */ -}}
{{- define "sandboxd.checks" -}}
{{- $values := .Values -}}
{{- if empty (include "sandboxd.templates" . | fromJson) -}}
{{- fail "there is no template, so nobody could lease anything: give one below `templates`, as `--set templates.python.image=python:3.12-slim`" -}}
{{- end -}}
{{- if empty $values.auth.keys -}}
{{- fail "nobody could call the daemon: name at least one key below `auth.keys`, as `--set 'auth.keys[0].name=trainer'`" -}}
{{- end -}}
{{- $names := list -}}
{{- range $values.auth.keys -}}
{{- if has .name $names -}}{{- fail (printf "two keys are named %q: give each of `auth.keys` a name of its own" .name) -}}{{- end -}}
{{- if and $values.auth.existingSecret .value -}}{{- fail (printf "the key %q is given twice: take `value` away, or `auth.existingSecret`" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- if and (has "metrics" $names) (eq (include "sandboxd.metricsKey" .) "true") -}}
{{- fail "`metrics` is the name of Prometheus' own key: give the one of `auth.keys` another name" -}}
{{- end -}}
{{- if and $values.ingress.enabled (not $values.ingress.host) -}}
{{- fail "an Ingress for any name would take other people's callers: set `ingress.host` to the name that yours use" -}}
{{- end -}}
{{- if and $values.httpRoute.enabled (not (and $values.httpRoute.parentRefs $values.httpRoute.host)) -}}
{{- fail "an HTTPRoute needs a Gateway and a name: set `httpRoute.parentRefs` and `httpRoute.host`" -}}
{{- end -}}
{{- if and $values.ingress.enabled $values.httpRoute.enabled (not $values.publicUrl) -}}
{{- fail "with an Ingress and an HTTPRoute both, set `publicUrl` to the address that URLs shall start with" -}}
{{- end -}}
{{- if and $values.sandboxes.priorityClass.create (not $values.sandboxes.priorityClass.name) -}}
{{- fail "set `sandboxes.priorityClass.name` to the name of the PriorityClass that is to be made" -}}
{{- end -}}
{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) $values.rbac.create -}}
{{- fail "the namespace's default account would get the daemon's rights: name another by `serviceAccount.name`" -}}
{{- end -}}
{{- if and (not $values.rbac.create) $values.uninstall.sweep -}}
{{- fail "the sweep before an uninstall needs roles of its own: set `uninstall.sweep=false` and sweep by hand, or `rbac.create=true`" -}}
{{- end -}}
{{- if and $values.tests.template (not (hasKey (include "sandboxd.templates" . | fromJson) $values.tests.template)) -}}
{{- fail (printf "`tests.template` is %q, which is no template: name one of %s" $values.tests.template (include "sandboxd.templates" . | fromJson | keys | sortAlpha | join ", ")) -}}
{{- end -}}
{{- range $name, $template := include "sandboxd.templates" . | fromJson -}}
{{- $pool := default dict $template.pool -}}
{{- if gt (int (default 0 $pool.ready)) (int (default 64 $pool.max)) -}}
{{- fail (printf "template %s: `pool.ready` (%d) is over `pool.max` (%d): raise `max`, or lower `ready`" $name (int $pool.ready) (int (default 64 $pool.max))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
