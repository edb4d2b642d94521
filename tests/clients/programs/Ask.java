// Asks a server with java.net.http.HttpClient at its defaults, which offer HTTP/2 (h2c) with every request.
// Arguments: address (host:port), API key, a CSV file. Prints a line for each request: status, a tab, body.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Ask {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static String address;
    static String key;

    static String ask(String method, String path, BodyPublisher body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + address + path))
            .header("Authorization", "Bearer " + key)
            .method(method, body)
            .build();
        HttpResponse<String> response = CLIENT.send(request, BodyHandlers.ofString());
        System.out.println(response.statusCode() + "\t" + response.body());
        return response.body();
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        key = arguments[1];
        Path file = Path.of(arguments[2]);
        String query = "{\"x\": [1, 5, 0]}";
        String tensor = "{\"inputs\": [{\"name\": \"x\", \"shape\": [1, 3], \"datatype\": \"FP64\", \"data\": [1, 5, 0]}]}";
        ask("GET", "/v1/models", BodyPublishers.noBody());
        ask("HEAD", "/livez", BodyPublishers.noBody());
        ask("POST", "/v1/models/pets/classes/cat:query", BodyPublishers.ofString(query));
        // Without a declared length the client sends chunks.
        byte[] bytes = query.getBytes();
        ask("POST", "/v1/models/pets/classes/cat:query",
            BodyPublishers.ofInputStream(() -> new java.io.ByteArrayInputStream(bytes)));
        ask("POST", "/v2/models/pets:cat/infer", BodyPublishers.ofString(tensor));
        String dataset = ask("POST", "/v1/datasets?name=java", BodyPublishers.ofFile(file));
        Matcher id = Pattern.compile("\"id\":\\s*\"(ds_[0-9a-f]+)\"").matcher(dataset);
        String job = id.find() ? "{\"dataset_id\": \"" + id.group(1) + "\", \"model\": \"java\"}" : "{}";
        ask("POST", "/v1/training-jobs", BodyPublishers.ofString(job));
    }
}
