package main

import (
	"fmt"
	"os"
	"testing"
)

func TestPagesHoldEveryNameWhileOthersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	const stable = 2000
	for i := range stable {
		must(t, os.WriteFile(fmt.Sprintf("%s/f%05d", dir, i), nil, 0o600))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; !isClosed(stop); i++ {
			name := fmt.Sprintf("%s/f%05d-passing", dir, i*37%stable)
			_ = os.WriteFile(name, nil, 0o600)
			_ = os.Remove(name)
		}
	}()
	defer func() { close(stop); <-stopped }()
	const limit = 20
	for range 5 {
		seen, after := map[string]bool{}, ""
		for {
			page, err := listPage(account{}, dir, after, false, limit)
			must(t, err)
			for i := range page {
				after = page[i].path[len(dir)+1:]
				if seen[after] {
					t.Fatalf("%s twice", after)
				}
				seen[after] = true
			}
			if len(page) < limit {
				break
			}
		}
		for i := range stable {
			if name := fmt.Sprintf("f%05d", i); !seen[name] {
				t.Fatalf("%s is missing", name)
			}
		}
	}
}
