package main

import (
	"strings"
	"testing"
)

func messageOf(header, parent, metadata, content string) [][]byte {
	var parts [][]byte
	for _, part := range []string{"topic", string(delimiter), "signature", header, parent, metadata, content} {
		parts = append(parts, []byte(part))
	}
	return parts
}

func TestOnlyMessagesFullOfValuesAreIntricate(t *testing.T) {
	head := `{"msg_id": "a"}`
	for name, c := range map[string]struct {
		parts     [][]byte
		intricate bool
	}{
		"plain":      {messageOf(head, head, "{}", `{"text": "x"}`), false},
		"long text":  {messageOf(head, head, "{}", `{"text": "`+strings.Repeat(`a,:{[\"`, 2<<20)+`"}`), false},
		"numbers":    {messageOf(head, head, "{}", `{"x": [`+strings.Repeat("1,", 500_000)+`1]}`), false},
		"too many":   {messageOf(head, head, "{}", `{"x": [`+strings.Repeat("1,", 1<<20)+`1]}`), true},
		"names":      {messageOf(head, head, "{}", `{`+strings.Repeat(`"a": 1,`, 50_000)+`"b": 1}`), true},
		"brackets":   {messageOf(head, head, "{}", strings.Repeat("[", 1<<18)), true},
		"header":     {messageOf(`{"x": "`+strings.Repeat("y", 70_000)+`"}`, head, "{}", "{}"), true},
		"parent":     {messageOf(head, strings.Repeat("y", 70_000), "{}", "{}"), true},
		"metadata":   {messageOf(head, head, strings.Repeat("y", 70_000), "{}"), true},
		"fractions":  {messageOf(head, head, "{}", `{"x": [`+strings.Repeat("0.12345678901234567,", 700_000)+`1]}`), false},
		"digits":     {messageOf(head, head, "{}", `{"x": [`+strings.Repeat(strings.Repeat("7", 4300)+",", 1_200)+`1]}`), true},
		"escapes":    {messageOf(head, head, "{}", `{"text": "`+strings.Repeat(`\u00e9`, 1_200_000)+`"}`), true},
		"no message": {[][]byte{[]byte(strings.Repeat("[", 1<<20))}, false},
		"cut":        {messageOf(head, head, "{}", "{}")[:6], false},
	} {
		if got := isIntricate(c.parts); got != c.intricate {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestAMessageFullOfValuesIsAGapOfItsChannelAndParent(t *testing.T) {
	l := newMessageLog()
	parent := `{"msg_id": "cell.1"}`
	l.add(channelShell, messageOf(`{"msg_type": "execute_reply"}`, parent, "{}", strings.Repeat("[", 1<<18)))
	l.add(channelIOPub, messageOf(`{"msg_type": "stream"}`, parent, "{}", `{"text": "kept"}`))
	frames, upTo, _ := l.take(0, 0, nil)
	text := string(frames)
	if upTo != 2 || !strings.Contains(text, `"channel":1`) || !strings.Contains(text, `"parent":"cell.1"`) || !strings.Contains(text, "kept") {
		t.Fatalf("%d %q", upTo, text)
	}
}

func TestGapsOfTwoChannelsAreTwo(t *testing.T) {
	l := newMessageLog()
	for _, channel := range []int{channelIOPub, channelIOPub, channelShell} {
		l.addLost(channel, messageOf("{}", `{"msg_id": "p"}`, "{}", "{}"))
	}
	l.mu.Lock()
	l.evict()
	defer l.mu.Unlock()
	if len(l.records) != 2 || l.records[0].lost != 2 || l.records[1].channel != channelShell {
		t.Fatalf("%+v", l.records)
	}
}

func TestAnIDThatNobodyCanHaveSentIsNone(t *testing.T) {
	_, parent := readIDs(messageOf("{}", `{"msg_id": "`+strings.Repeat("x", 300)+`"}`, "{}", "{}"))
	if parent != "" {
		t.Fatalf("%d", len(parent))
	}
}
